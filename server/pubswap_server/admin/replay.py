"""`pubswap admin replay`: average a run's kept rounds again without some members."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.progress_bar import tracked
from pubswap_protocol.errors import Gone, NotFound
from pubswap_server.admin.averaging import RetainedRounds, averaged, new_folder, write_adapter
from pubswap_server.admin.opened import opened_in_use
from pubswap_server.admin.verify import gone_if_freed
from pubswap_server.aggregation.round import Aggregated
from pubswap_server.aggregation.rules import Note
from pubswap_server.runs import runs
from pubswap_server.runs.auth import Operator
from pubswap_server.settings import ServerSettings

CARD = "README.md"


@dataclass(frozen=True)
class Replay:
    """The result of a replay.

    `left_out` maps each member left out to the rounds of its updates. `same` says whether the
    adapter equals the run's own to the bit.
    """

    retained: RetainedRounds
    left_out: dict[str, list[int]]
    same: bool
    notes: list[tuple[int, Note]]

    def lines(self) -> Iterator[str]:
        """Describe the adapter, and what remains in it of the members left out."""
        run, numbers = self.retained.run, [each.round for each in self.retained.inputs]
        first, last = numbers[0], numbers[-1]
        yield f"{_rounds(numbers).capitalize()} of run {run.name} ({run.id}) averaged again."
        for member, rounds in self.left_out.items():
            yield f"Left out: the updates of {member} in {_rounds(rounds)}."
        for number, note in self.notes:
            yield f"In round {number}: {note.kind}, {note.details}."
        if first > 1:
            yield (
                f"{_rounds(list(range(1, first))).capitalize()} could not be averaged again: their "
                "updates are no longer kept. PUBSWAP_KEEP_ROUNDS = 0 on the coordinator keeps "
                "the updates of all future rounds."
            )
        if self.same:
            yield f"The adapter equals that of round {last} to the bit."
        if not self.left_out:
            return
        members = ", ".join(self.left_out)
        yield f"This is not unlearning. What {members} contributed is still in the adapter:"
        if first > 1:
            yield f"- as updates in the rounds before round {first};"
        yield "- in the others' steps, which started from adapters that contained it;"
        yield "- in the others' steps that trained on its responses."
        yield "Only a run without it from the start, or rolled back to before it, is free of it."


def _rounds(numbers: list[int]) -> str:
    """`round 3`, `rounds 3 to 5`, `rounds 3, 5`."""
    if len(numbers) == 1:
        return f"round {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"rounds {numbers[0]} to {numbers[-1]}"
    return f"rounds {', '.join(map(str, numbers))}"


def replay(
    settings: ServerSettings,
    run: str,
    without: Collection[str],
    out: Path,
    progress: Progress,
    last: int | None = None,
) -> Replay:
    """Write a PEFT folder `out` with the adapter that round `last` would have ended with.

    Each kept round is averaged by the run's rule from the other members' updates. After the first,
    a round starts from the recomputed round before it, and each member's step in it is unchanged.
    The coordinator's data is not changed.
    Raises UnknownRun, NotFound, Gone, WrongState, InvalidSettings or Unavailable.
    """
    with new_folder(out) as (folder, into), opened_in_use(settings, folder.parent) as deployment:
        with deployment.database.snapshot() as connection, Session(connection) as session:
            row = runs.find(session, run, Operator())
            rounds = RetainedRounds.read(session, row, last)
            if not rounds.inputs:
                raise Gone(
                    f"No updates of run {row.name} are kept up to round {max(rounds.published)}: "
                    "they are deleted after PUBSWAP_KEEP_ROUNDS rounds, and by `pubswap run "
                    "archive`. PUBSWAP_KEEP_ROUNDS = 0 on the coordinator keeps all future ones."
                )
            left_out = _left_out(rounds, without)
        results: list[Aggregated] = []
        for inputs in tracked(progress, "rounds", rounds.inputs):
            previous = results[-1] if results else None
            with gone_if_freed(deployment, inputs):
                results.append(averaged(inputs, without, previous, deployment.blobs, into))
            deployment.forget_fetched()
        first, last, adapter = rounds.inputs[0].round, rounds.inputs[-1].round, results[-1].adapter
        notes = [(n, note) for n, each in enumerate(results, first) for note in each.notes]
        report = Replay(rounds, left_out, adapter == rounds.published[last], notes)
        earlier = map(deployment.blobs.path, rounds.earlier_residuals(first))
        residuals = (into.path(each.residual) for each in results if each.residual is not None)
        write_adapter(folder, rounds.run, [into.path(adapter), *earlier, *residuals])
        (folder / CARD).write_text("\n".join(report.lines()) + "\n", encoding="utf-8")
    return report


def _left_out(retained: RetainedRounds, without: Collection[str]) -> dict[str, list[int]]:
    """The kept rounds in which each member has an update; raises NotFound if one has none."""
    rounds_by_member = {
        name: [each.round for each in retained.inputs if name in each.members]
        for name in sorted(set(without))
    }
    members = sorted({member for each in retained.inputs for member in each.members})
    for name, rounds in rounds_by_member.items():
        if not rounds:
            raise NotFound(
                f"No update of {name!r} counts in {_rounds([e.round for e in retained.inputs])} of "
                f"run {retained.run.name}; there are updates of {', '.join(members)}."
            )
    return rounds_by_member
