"""Bytes by client and round, compared with full fine-tuning, and seconds; and how much of both it
takes to reach a pass@1, the figure that decides."""

import math
from collections.abc import Iterator
from statistics import fmean

from pydantic import BaseModel

from pubswap_protocol.messages import Role, WholeRun
from pubswap_protocol.tensors.adapter import modules
from pubswap_simulation.reporting.methods import BASE
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.results import Result

FLOAT_BYTES = 4
GRID = 20  # targets are multiples of a twentieth, of 5 %
TARGETS = 3


class Bytes(BaseModel, frozen=True):
    """Bytes of one client in one round; up = sent."""

    adapters_up: float
    adapters_down: float
    responses_up: float
    responses_down: float

    @property
    def all(self) -> float:
        """Both directions together."""
        return self.adapters_up + self.adapters_down + self.responses_up + self.responses_down


class Cost(BaseModel, frozen=True):
    """The cost of a row at a tau, mean over n seeds."""

    row: str
    tau: int
    n: int
    rounds: int
    by_client_and_round: Bytes
    full_fine_tuning: int
    seconds: float


class PayloadSizes(BaseModel, frozen=True):
    """Parameters: of an adapter, sum of r (m + d); of the layers it adapts, sum of m d; in all."""

    adapter: int
    adapted_layers: int
    model: int


def traffic(run: WholeRun) -> Bytes:
    """Bytes of one client in one round, mean over clients and rounds."""
    counted = [member.traffic for member in run.members if member.role is Role.CLIENT]
    turns = run.settings.clients * run.settings.rounds
    return Bytes(
        **{kind: sum(getattr(one, kind) for one in counted) / turns for kind in Bytes.model_fields}
    )


def sizes(run: WholeRun) -> PayloadSizes:
    """Parameters of the adapter, of the layers it adapts, and of the model."""
    layout = run.model.layout
    return PayloadSizes(
        adapter=layout.parameters,
        # A is (r, d) and B is (m, r).
        adapted_layers=sum(layout.tensors[b][0] * layout.tensors[a][1] for a, b in modules(layout)),
        model=run.model.parameters,
    )


def costs(section: Section) -> Iterator[Cost]:
    """The cost of every federated row at every tau."""
    for method, tau, results in section.federated:
        run = results[0].run
        sent = [traffic(result.run) for result in results]
        means = {kind: fmean(getattr(one, kind) for one in sent) for kind in Bytes.model_fields}
        yield Cost(
            row=method.label,
            tau=tau,
            n=len(section.cells[method][tau]),
            rounds=run.settings.rounds,
            by_client_and_round=Bytes(**means),
            # The whole model up and down in float32.
            full_fine_tuning=2 * FLOAT_BYTES * run.model.parameters,
            seconds=fmean(result.seconds for result in results),
        )


class Reach(BaseModel, frozen=True):
    """What it takes a row at a tau to reach a pass@1: means over n seeds, None if one does not."""

    row: str
    tau: int
    target: float
    n: int
    reached: int
    rounds: float | None = None
    bytes_of_a_client: float | None = None
    seconds: float | None = None


def reach(section: Section) -> list[Reach]:
    """The cost of every federated row, at the highest targets that any row reaches on average."""
    return [
        _reach(method.label, tau, target, results)
        for target in targets(section)
        for method, tau, results in section.federated
    ]


def targets(section: Section) -> list[float]:
    """The highest multiples of 5 % above the base model, up to the best row's mean final."""
    finals = [fmean(result.final for result in results) for _, _, results in section.federated]
    cells = section.cells[BASE].values()
    base = fmean(result.base for cell in cells for results in cell.values() for result in results)
    highest, lowest = math.floor(max(finals, default=0.0) * GRID), math.floor(base * GRID)
    return [multiple / GRID for multiple in range(max(lowest, highest - TARGETS) + 1, highest + 1)]


def _reach(row: str, tau: int, target: float, results: list[Result]) -> Reach:
    rounds = [(_round_of(result, target), result) for result in results]
    reached = [(number, result) for number, result in rounds if number is not None]
    cell = Reach(row=row, tau=tau, target=target, n=len(results), reached=len(reached))
    if len(reached) < len(results):
        return cell
    means = {
        "rounds": fmean(number for number, _ in reached),
        "bytes_of_a_client": fmean(number * traffic(result.run).all for number, result in reached),
        "seconds": fmean(
            number / result.run.settings.rounds * result.seconds for number, result in reached
        ),
    }
    return cell.model_copy(update=means)


def _round_of(result: Result, target: float) -> int | None:
    """The first trained round whose adapter reaches the target."""
    scores = enumerate(evaluation.pass_at_1 for evaluation in result.evaluations)
    return next((number for number, score in scores if number and score >= target), None)
