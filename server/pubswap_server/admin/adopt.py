"""Make a blob store that of a database's deployment, whatever it was before."""

from dataclasses import dataclass

from sqlalchemy import delete, select

from pubswap_protocol.command_line.amounts import size_text
from pubswap_server.admin.opened import Deployment
from pubswap_server.conductor.leftovers import STRANGE_DAYS
from pubswap_server.conductor.maintenance import leave_tombstones
from pubswap_server.conductor.ownership import identify, named_by, place
from pubswap_server.database.engine import migrate
from pubswap_server.database.tables import UnnamedRow
from pubswap_server.settings import ServerSettings


@dataclass(frozen=True)
class AdoptionPlan:
    """A database's blobs in a store, and the blobs there that it never named."""

    place: str
    database: str
    store: str | None
    named: int
    missing: int
    strange: dict[str, int]
    discard: bool

    def lines(self) -> list[str]:
        """What adopting would do."""
        whose = f"of the deployment {self.store}" if self.store else "of no deployment yet"
        if self.store == self.database:
            whose = "of this database's deployment already"
        count, size = len(self.strange), size_text(sum(self.strange.values()))
        after = "at once" if self.discard else f"{STRANGE_DAYS:g} days after it first sees them"
        lines = [
            f"{self.place}: the store is {whose}.",
            f"The database names {self.named} blobs: {self.named - self.missing} are in the store, "
            f"{self.missing} are missing there.",
            f"The store has {count} blobs ({size}) that this database never named. The coordinator "
            f"removes them {after}.",
            f"The store becomes that of this database's deployment, {self.database}.",
        ]
        if self.store not in (None, self.database):
            lines.append(f"A coordinator of the deployment {self.store} refuses to start on it.")
        return lines


def plan(settings: ServerSettings, deployment: Deployment, *, discard: bool) -> AdoptionPlan:
    """What `adopt` would do. Brings the schema up to date, and gives the database an id."""
    blobs, database = deployment.blobs, deployment.database
    blobs.check()
    migrate(settings.sqlalchemy_url)
    named = named_by(database)
    with database.snapshot() as connection:
        tombstones = select(UnnamedRow.digest).where(UnnamedRow.noted_at.is_(None))
        known = named | set(connection.scalars(tombstones))
    stored = {blob.name: blob.size for blob in blobs.blobs()}
    return AdoptionPlan(
        place=place(settings),
        database=identify(database),
        store=blobs.owner(),
        named=len(named),
        missing=len(named - stored.keys()),
        strange={name: size for name, size in stored.items() if name not in known},
        discard=discard,
    )


def adopt(deployment: Deployment, adoption: AdoptionPlan) -> None:
    """Do it. After a kill in the middle it can be repeated."""
    if adoption.discard:
        with deployment.database.writing() as session:
            session.execute(delete(UnnamedRow).where(UnnamedRow.noted_at.is_not(None)))
            leave_tombstones(session, adoption.strange)
    deployment.blobs.hand_over(adoption.database)
