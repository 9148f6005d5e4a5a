"""What it costs to reach a pass@1: rounds, bytes of a client, seconds. The figure that decides."""

import math
from statistics import fmean

from pydantic import BaseModel, ConfigDict

from pubswap_simulation.reporting.costs import traffic
from pubswap_simulation.reporting.methods import BASE
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.results import Result

GRID = 20  # targets are multiples of a twentieth, of 5 %
TARGETS = 3


class Reach(BaseModel):
    """How a row at a tau reaches a pass@1; means over its n seeds, none if one never does."""

    model_config = ConfigDict(frozen=True)

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
        _reach(method.label, tau, target, [one for of_seed in cell.values() for one in of_seed])
        for target in targets(section)
        for method in section.methods
        if method.kind == "federated" and not method.detail
        for tau, cell in sorted(section.cells[method].items())
    ]


def targets(section: Section) -> list[float]:
    """The highest multiples of 5 % above the base model, up to the best row's mean final."""
    finals = [
        fmean(result.final for results in cell.values() for result in results)
        for method in section.methods
        if method.kind == "federated" and not method.detail
        for cell in section.cells[method].values()
    ]
    base = fmean(
        result.base
        for cell in section.cells[BASE].values()
        for results in cell.values()
        for result in results
    )
    highest, lowest = math.floor(max(finals, default=0.0) * GRID), math.floor(base * GRID)
    return [place / GRID for place in range(max(lowest, highest - TARGETS) + 1, highest + 1)]


def _reach(row: str, tau: int, target: float, results: list[Result]) -> Reach:
    rounds = [_round_of(result, target) for result in results]
    reached = [number for number in rounds if number is not None]
    cell = Reach(row=row, tau=tau, target=target, n=len(results), reached=len(reached))
    if len(reached) < len(results):
        return cell
    shares = [
        number / result.run.settings.rounds for number, result in zip(reached, results, strict=True)
    ]
    return cell.model_copy(
        update={
            "rounds": fmean(reached),
            "bytes_of_a_client": fmean(
                number * traffic(result.run).all
                for number, result in zip(reached, results, strict=True)
            ),
            "seconds": fmean(
                share * result.seconds for share, result in zip(shares, results, strict=True)
            ),
        }
    )


def _round_of(result: Result, target: float) -> int | None:
    """The first trained round whose adapter has the pass@1."""
    for number, evaluation in enumerate(result.evaluations):
        if number and evaluation.pass_at_1 >= target:
            return number
    return None
