"""`pubswap admin replay`: average a run's kept rounds again without some members."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.progress_bar import tracked
from pubswap_protocol.errors import Gone, NotFound
from pubswap_server.admin.averaging import KeptRounds, averaged, new_folder, write_adapter
from pubswap_server.admin.opened import opened_in_use
from pubswap_server.admin.verify import still_kept
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

    kept: KeptRounds
    left_out: dict[str, list[int]]
    same: bool
    notes: list[tuple[int, Note]]

    def lines(self) -> Iterator[str]:
        """Describe the adapter, and what remains in it of the members left out."""
        run, numbers = self.kept.run, [each.round for each in self.kept.inputs]
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
    with (
        new_folder(out) as (folder, into),
        opened_in_use(settings, folder.parent) as deployment,
    ):
        with deployment.database.snapshot() as connection, Session(connection) as session:
            row = runs.find(session, run, Operator())
            kept = KeptRounds.read(session, row, last)
            if not kept.inputs:
                raise Gone(
                    f"No updates of run {row.name} are kept up to round {max(kept.published)}: "
                    "they are deleted after PUBSWAP_KEEP_ROUNDS rounds, and by `pubswap run "
                    "archive`. PUBSWAP_KEEP_ROUNDS = 0 on the coordinator keeps all future ones."
                )
            left_out = _left_out(kept, without)
        made: list[Aggregated] = []
        for inputs in tracked(progress, "rounds", kept.inputs):
            before = made[-1] if made else None
            with still_kept(deployment, inputs):
                made.append(averaged(inputs, without, before, deployment.blobs, into))
            deployment.forget_fetched()
        first, last, adapter = kept.inputs[0].round, kept.inputs[-1].round, made[-1].adapter
        notes = [(n, note) for n, each in enumerate(made, first) for note in each.notes]
        found = Replay(kept, left_out, adapter == kept.published[last], notes)
        earlier = map(deployment.blobs.path, kept.residuals_before(first))
        residuals = (into.path(each.residual) for each in made if each.residual is not None)
        write_adapter(folder, kept.run, [into.path(adapter), *earlier, *residuals])
        (folder / CARD).write_text("\n".join(found.lines()) + "\n", encoding="utf-8")
    return found


def _left_out(kept: KeptRounds, without: Collection[str]) -> dict[str, list[int]]:
    """The kept rounds in which each member has an update; raises NotFound if one has none."""
    found = {
        name: [each.round for each in kept.inputs if name in each.members]
        for name in sorted(set(without))
    }
    known = sorted({member for each in kept.inputs for member in each.members})
    for name, rounds in found.items():
        if not rounds:
            raise NotFound(
                f"No update of {name!r} counts in {_rounds([e.round for e in kept.inputs])} of run "
                f"{kept.run.name}; there are updates of {', '.join(known)}."
            )
    return found
