"""What it costs to reach a pass@1: rounds, bytes of a client, seconds. The figure that decides."""

import math
from statistics import fmean

from pydantic import BaseModel

from pubswap_simulation.reporting.costs import traffic
from pubswap_simulation.reporting.methods import BASE
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.results import Result

GRID = 20  # targets are multiples of a twentieth, of 5 %
TARGETS = 3


class Reach(BaseModel, frozen=True):
    """How a row at a tau reaches a pass@1; means over its n seeds, none if one never does."""

    row: str
    tau: int
    target: float
    n: int
    reached: int
    rounds: float | None = None
    bytes_of_a_client: float | None = None
    seconds: float | None = None


def reach(section: Section) -> list[Reach]:
    """Every federated row's, at the highest targets that a row reaches on average."""
    return [
        _reach(method.label, tau, target, results)
        for target in targets(section)
        for method, tau, results in section.federated
    ]


def targets(section: Section) -> list[float]:
    """The highest multiples of 5 % above the base model, up to the best row's mean final."""
    finals = [fmean(one.final for one in results) for _, _, results in section.federated]
    cells = section.cells[BASE].values()
    base = fmean(one.base for cell in cells for results in cell.values() for one in results)
    highest, lowest = math.floor(max(finals, default=0.0) * GRID), math.floor(base * GRID)
    return [place / GRID for place in range(max(lowest, highest - TARGETS) + 1, highest + 1)]


def _reach(row: str, tau: int, target: float, results: list[Result]) -> Reach:
    rounds = [(_round_of(result, target), result) for result in results]
    reached = [(number, result) for number, result in rounds if number is not None]
    cell = Reach(row=row, tau=tau, target=target, n=len(results), reached=len(reached))
    if len(reached) < len(results):
        return cell
    means = {
        "rounds": fmean(number for number, _ in reached),
        "bytes_of_a_client": fmean(number * traffic(one.run).all for number, one in reached),
        "seconds": fmean(number / one.run.settings.rounds * one.seconds for number, one in reached),
    }
    return cell.model_copy(update=means)


def _round_of(result: Result, target: float) -> int | None:
    """The first trained round whose adapter has the pass@1."""
    scores = enumerate(evaluation.pass_at_1 for evaluation in result.evaluations)
    return next((number for number, score in scores if number and score >= target), None)
