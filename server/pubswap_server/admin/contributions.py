"""`pubswap admin contributions`: members' contributions, and each round without each member."""

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from shlex import quote

from pydantic import BaseModel, Field
from rich.progress import Progress
from sqlalchemy import select
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.amounts import size_text
from pubswap_protocol.command_line.progress_bar import tracked
from pubswap_protocol.errors import NotSaved
from pubswap_protocol.messages import Role
from pubswap_server.admin.averaging import RetainedRounds, averaged, new_folder, write_adapter
from pubswap_server.admin.opened import Deployment, opened_in_use
from pubswap_server.admin.verify import gone_if_freed
from pubswap_server.database.tables import MemberRow, RunRow, SwapRow, UpdateRow
from pubswap_server.exchange import exchanges
from pubswap_server.runs import runs
from pubswap_server.runs.auth import Operator
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.local import LocalBlobs

ALL = "all"  # the folder of a round's own adapter, which the others are compared with


class Contribution(BaseModel):
    """One member's contributions to a run so far, and what it received from its peers."""

    member: str
    rounds: int = Field(default=0, description="Rounds for which its update came in time.")
    exchanges: int = Field(
        default=0, description="Public steps for which its responses came in time."
    )
    responses: int = Field(default=0, description="Its own responses in those steps.")
    right: int = Field(default=0, description="Its responses that the coordinator found right.")
    given: dict[str, int] = Field(
        default={},
        description="Its responses in each peer's groups. If receivers choose, those offered to "
        "each peer, because receivers do not report their choice.",
    )
    received: int = Field(default=0, description="Its own responses replaced by peers' responses.")


class Contributions(BaseModel):
    """The contributions to a run, by member, and the rounds that were averaged without each."""

    run: str
    name: str
    offered: bool = Field(description="Whether `given` counts what was offered.")
    members: list[Contribution]
    left_out: dict[int, list[str]] = Field(
        default={}, description="The rounds written, and the members left out one at a time."
    )
    single: list[int] = Field(default=[], description="Rounds with a single update, not written.")
    not_kept: list[int] = Field(default=[], description="Rounds whose updates are not kept.")

    def text(self, out: Path | None) -> str:
        heading = "offered" if self.offered else "given"
        rows: list[tuple[str | int, ...]] = [
            ("member", "rounds", "exchanges", "responses", "right", heading, "received"),
            *(
                (
                    *(part.member, part.rounds, part.exchanges, part.responses, part.right),
                    *(sum(part.given.values()), part.received),
                )
                for part in self.members
            ),
        ]
        widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
        lines = [f"Run {self.name} ({self.run})"]
        for first, *others in rows:
            cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
            lines.append("  ".join([f"{first:<{widths[0]}}", *cells]))
        if self.offered:
            lines.append("Receivers chose among the offered responses, and do not report which.")
        if out is not None:
            lines += self._written(out)
        return "\n".join(lines)

    def _written(self, out: Path) -> Iterator[str]:
        for number, members in self.left_out.items():
            yield f"{out}/round-{number}: its adapter, and without {', '.join(members)}."
        for number in self.single:
            yield f"Round {number} has a single update; without it nothing is left."
        if self.not_kept:
            some = ", ".join(map(str, self.not_kept))
            yield (
                f"No longer kept: the updates of rounds {some}. PUBSWAP_KEEP_ROUNDS = 0 on "
                "the coordinator keeps the updates of all future rounds."
            )
        if self.left_out:
            yield "Anyone with a round's adapter and one of these can compute that member's update:"
            yield "protect the folder like the coordinator. Score it on the evaluator's machine:"
            yield f"  pubswap evaluate --adapters {quote(str(out))}"


def contributions(
    settings: ServerSettings,
    run: str,
    progress: Progress,
    out: Path | None = None,
    only: Collection[int] = (),
) -> Contributions:
    """The contributions to a run; with `out`, also each kept round's adapter without each member.

    `only` names the rounds to write, by default all that are kept. The coordinator's data is not
    changed. Raises UnknownRun, NotFound, Gone, NotSaved, InvalidSettings or Unavailable.
    """
    with (
        opened_in_use(settings, Path(tempfile.gettempdir())) as deployment,
        deployment.database.snapshot() as connection,
        Session(connection) as session,
    ):
        row = runs.find(session, run, Operator())
        report = _counted(session, row)
        retained = RetainedRounds.read(session, row, max(only, default=None)) if out else None
    if out is not None and retained is not None:
        with (
            new_folder(out) as (folder, into),
            opened_in_use(settings, folder.parent) as deployment,
        ):
            _write_rounds(deployment, retained, only, folder, into, report, progress)
    return report


def _counted(session: Session, run: RunRow) -> Contributions:
    """Count from the rows of updates and exchanges, which are never deleted, without late ones."""
    clients = select(MemberRow.name).where(
        MemberRow.run_id == run.id, MemberRow.role == Role.CLIENT
    )
    parts = {name: Contribution(member=name) for name in session.scalars(clients)}

    def part(member: str) -> Contribution:
        return parts.setdefault(member, Contribution(member=member))

    in_time = select(UpdateRow.member).where(UpdateRow.run_id == run.id, UpdateRow.late.is_(False))
    for member, count in Counter(session.scalars(in_time)).items():
        part(member).rounds = count
    closed = select(SwapRow).where(SwapRow.run_id == run.id, SwapRow.closed.is_(True))
    for row in session.scalars(closed.order_by(SwapRow.round, SwapRow.swap)):
        exchange = exchanges.answered(session, run, row.round, row.swap)
        received = exchange.replaced()
        for member, correct in exchange.correct.items():
            mine = part(member)
            mine.exchanges += 1
            mine.responses += correct.size
            mine.right += int(correct.sum())
            mine.received += received[member]
            for donor, count in exchange.gifts(member).items():
                its = part(donor).given
                its[member] = its.get(member, 0) + count
    offered = run.settings.swap.donors == "likely"
    return Contributions(
        run=run.id, name=run.name, offered=offered, members=[parts[name] for name in sorted(parts)]
    )


def _write_rounds(
    deployment: Deployment,
    retained: RetainedRounds,
    only: Collection[int],
    folder: Path,
    into: LocalBlobs,
    report: Contributions,
    progress: Progress,
) -> None:
    """Write a folder for each round, with its own adapter and one without each member."""
    rounds = [each for each in retained.inputs if not only or each.round in only]
    wished = only or [number for number in retained.published if number > 0]
    report.not_kept = sorted(set(wished) - {each.round for each in rounds})
    report.single = [each.round for each in rounds if len(each.members) == 1]
    rounds = [each for each in rounds if len(each.members) > 1]
    needed = sum((1 + len(each.members)) * each.layout.file_bytes for each in rounds)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise NotSaved(
            f"The adapters take {size_text(needed)}, and the disk has {size_text(free)} free. "
            "Name another --out, or fewer rounds with --round."
        )
    report.left_out = {each.round: each.members for each in rounds}
    adapters = [(each, member) for each in rounds for member in (None, *each.members)]
    path = deployment.blobs.path
    for inputs, member in tracked(progress, "adapters", adapters):
        parent, earlier = folder / f"round-{inputs.round}", retained.earlier_residuals(inputs.round)
        if member is None:
            digests = [retained.published[inputs.round], *earlier]
            digests += filter(None, [retained.residuals.get(inputs.round)])
            write_adapter(parent / ALL, retained.run, [path(digest) for digest in digests])
        else:
            with gone_if_freed(deployment, inputs):
                result = averaged(inputs, {member}, None, deployment.blobs, into)
            files = [into.path(result.adapter), *map(path, earlier)]
            files += [into.path(result.residual)] if result.residual is not None else []
            write_adapter(parent / f"without-{member}", retained.run, files)
            for digest in filter(None, (result.adapter, result.residual, result.server_state)):
                into.remove_older(digest, math.inf)
        deployment.forget_fetched()
