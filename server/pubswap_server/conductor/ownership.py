"""A deployment owns one database and one blob store, which both have its id.

With another database, every blob in the store would look left over. The database gets the id first,
in a transaction, and the store takes it only if it has none. So processes that start together agree
on one, and after a kill between the two writes the next start makes the second.
"""

import secrets
from collections.abc import Callable, Collection

from sqlalchemy import Engine, inspect, make_url, select
from sqlalchemy.orm import Session

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.database.engine import Database, inserting, migrate
from pubswap_server.database.naming import digests_in, required_columns
from pubswap_server.database.tables import DeploymentRow
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.store import BlobStore

REMEDY = (
    "Name the two that belong together (--database-url, --data-dir, --blob-url), or make them so: "
    "`pubswap admin adopt` with these settings says what that would do, and asks."
)


def discord(
    database: str | None,
    store: str | None,
    named: Callable[[], Collection[str]],
    stored: Callable[[], Collection[str]],
) -> str | None:
    """Why this database and this store do not belong together; None if they do.

    The first two are their ids. A store without an id, such as one of before there were any, or one
    that was filled by hand, is told by its blobs: it must have most that the database names.
    """
    if store is not None:
        if store == database:
            return None
        whose = f"to {database}" if database is not None else "to none yet"
        return f"the blobs belong to the deployment {store}, and the database {whose}"
    digests, there = set(named()), set(stored())
    found = len(digests & there)
    if 2 * found > len(digests) or not (digests or there):
        return None
    of_those = f"{found} are among the {len(there)} in the store"
    return f"the database names {len(digests)} blobs, and of those {of_those}"


def join(settings: ServerSettings, blobs: BlobStore) -> None:
    """Bring the schema up to date, and see that database and store are of one deployment.

    A new database and an empty store become one. Raises InvalidSettings if they do not belong
    together, Unavailable or SQLAlchemyError if one of them does not answer.
    """
    blobs.check()
    # Read the store's id before the database's: another process writes them in the other order.
    store = blobs.owner()
    # The first connection sets SQLite's journal mode; workers would not take turns.
    database = Database(settings.sqlalchemy_url)
    try:
        known = deployment_of(database.engine)
        if store in (None, known):
            migrate(settings.sqlalchemy_url)  # never the database of another deployment
        reason = discord(known, store, lambda: named_by(database), lambda: stored_in(blobs))
        if reason is None and store is None:
            own = identify(database)
            if (owner := blobs.claim(own)) != own:  # another database's process was faster
                reason = discord(own, owner, set, set)
    finally:
        database.close()
    if reason is not None:
        raise InvalidSettings(f"{place(settings)} are of different deployments: {reason}. {REMEDY}")


def place(settings: ServerSettings) -> str:
    """The database and the store, for messages."""
    url = make_url(settings.sqlalchemy_url).render_as_string(hide_password=True)
    return f"The database {url} and the store {settings.blob_url or settings.data_dir / 'blobs'}"


def deployment_of(engine: Engine) -> str | None:
    """The id in the database, of whatever schema; None if it has none."""
    with Session(engine) as session:
        there = inspect(session.connection()).has_table(DeploymentRow.__tablename__)
        return session.scalar(select(DeploymentRow.id)) if there else None


def identify(database: Database) -> str:
    """The id in the database, made if there is none."""
    with database.writing() as session:
        row = inserting(session, DeploymentRow).values(key=1, id=secrets.token_hex(8))
        session.execute(row.on_conflict_do_nothing())
        return session.scalars(select(DeploymentRow.id)).one()


def named_by(database: Database) -> set[str]:
    with database.snapshot() as connection, Session(connection) as session:
        return digests_in(session, required_columns())


def stored_in(blobs: BlobStore) -> set[str]:
    return {blob.name for blob in blobs.blobs()}
