"""Bytes and seconds of a run, and how much of both it takes to reach a pass@1."""

import math
from collections.abc import Iterator
from statistics import fmean

from pydantic import BaseModel

from pubswap_protocol.messages import Role, WholeRun
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.results import Result

FLOAT_BYTES = 4
GRID = 20  # targets are multiples of a twentieth, of 5 %
TARGETS = 3
KINDS = ("adapters_up", "adapters_down", "responses_up", "responses_down")


class Cost(BaseModel, frozen=True):
    """The cost of a row at a tau, mean over n seeds: bytes of one client in one round (up = sent),
    beside full fine-tuning in float32, and seconds."""

    row: str
    tau: int
    n: int
    rounds: int
    adapters_up: float
    adapters_down: float
    responses_up: float
    responses_down: float
    full_fine_tuning: int
    seconds: float


class CostToTarget(BaseModel, frozen=True):
    """What it takes a row at a tau to reach a pass@1: means over n seeds, None if one does not."""

    row: str
    tau: int
    target: float
    n: int
    reached: int
    rounds: float | None = None
    bytes_of_a_client: float | None = None
    seconds: float | None = None


def traffic(run: WholeRun) -> dict[str, float]:
    """Bytes of one client in one round by kind, mean over clients and rounds."""
    counted = [member.traffic for member in run.members if member.role is Role.CLIENT]
    turns = run.settings.clients * run.settings.rounds
    return {kind: sum(getattr(one, kind) for one in counted) / turns for kind in KINDS}


def costs(section: Section) -> Iterator[Cost]:
    """The cost of every federated row at every tau."""
    for method, tau, results in section.federated:
        sent = [traffic(result.run) for result in results]
        yield Cost(
            row=method.label,
            tau=tau,
            n=len(results),
            rounds=results[0].run.settings.rounds,
            # The whole model up and down.
            full_fine_tuning=2 * FLOAT_BYTES * results[0].run.model.parameters,
            seconds=fmean(result.seconds for result in results),
            **{kind: fmean(one[kind] for one in sent) for kind in KINDS},
        )


def costs_to_target(section: Section) -> Iterator[CostToTarget]:
    """The cost of every federated row, at the highest targets that any row reaches on average."""
    for target in _targets(section):
        for method, tau, results in section.federated:
            found = [(_round_of(result, target), result) for result in results]
            reached = [(number, result) for number, result in found if number is not None]
            means = (
                {
                    "rounds": fmean(number for number, _ in reached),
                    "bytes_of_a_client": fmean(
                        n * sum(traffic(r.run).values()) for n, r in reached
                    ),
                    "seconds": fmean(n / r.run.settings.rounds * r.seconds for n, r in reached),
                }
                if len(reached) == len(results)
                else {}
            )
            n = len(results)
            yield CostToTarget(
                row=method.label, tau=tau, target=target, n=n, reached=len(reached), **means
            )


def _targets(section: Section) -> list[float]:
    """The highest multiples of 5 % above the base model, up to the best row's mean final."""
    finals = [fmean(result.final for result in results) for _, _, results in section.federated]
    base = fmean(result.base for _, result in section.runs)
    highest, lowest = math.floor(max(finals, default=0.0) * GRID), math.floor(base * GRID)
    return [multiple / GRID for multiple in range(max(lowest, highest - TARGETS) + 1, highest + 1)]


def _round_of(result: Result, target: float) -> int | None:
    """The first trained round whose adapter reaches the target."""
    scores = enumerate(evaluation.pass_at_1 for evaluation in result.evaluations)
    return next((number for number, score in scores if number and score >= target), None)
