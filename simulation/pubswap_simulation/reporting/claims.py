"""Verdicts on the paper's claims, from differences paired by seed: pure functions.

A claim holds when the whole 95 % interval is on its side of zero, does not when it is on the
other, and is undecided when the interval covers zero. Two seeds decide nothing. Neither do
identical differences: pass@1 counts problems, so they can agree by chance and have no width.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel

from pubswap_simulation.reporting.estimates import ROUNDING, Difference, paired
from pubswap_simulation.reporting.measures import DRIFT, FINAL, REPLACED_CHANGE, Measure
from pubswap_simulation.reporting.methods import FEDAVG, FEDPROX, Arm
from pubswap_simulation.reporting.section import Section

FEWEST = 3

Verdict = Literal["holds", "does not", "undecided"]
Values = Mapping[int, float]  # by seed
Claim = tuple[str, int, str, Measure, Values, Values]  # its sign, what is compared, both sides


class ClaimResult(BaseModel, frozen=True):
    """A claim, the rows compared for it, and the verdict."""

    claim: str
    compared: str
    share: bool
    difference: Difference
    verdict: Verdict


def verdict(difference: Difference, sign: int) -> Verdict:
    """Whether a difference is on a claim's side of zero: above for sign = 1, below for -1."""
    low, high = difference.low, difference.high
    if difference.n < FEWEST or low is None or high is None:
        return "undecided"
    if high - low <= ROUNDING or low <= 0 <= high:
        return "undecided"
    return "holds" if (low > 0) == (sign > 0) else "does not"


def findings(section: Section) -> list[ClaimResult]:
    """A verdict on every claim with results; the smallest and the largest tau are FedAvg's."""
    taus = sorted(tau for method, tau in section.cells if method == FEDAVG)
    return [
        ClaimResult(
            claim=claim,
            compared=compared,
            share=measure.share,
            difference=difference,
            verdict=verdict(difference, sign),
        )
        for claim, sign, compared, measure, *sides in (
            _claims(section, taus[0], taus[-1]) if taus else ()
        )
        if (difference := paired(*sides)) is not None
    ]


def _claims(section: Section, small: int, large: int) -> Iterator[Claim]:
    def apart(
        left: Arm, tau: int, right: Arm, other: int, measure: Measure = FINAL
    ) -> tuple[str, Measure, Values, Values]:
        both = f"{left.label}, minus {right.label}; τ = {tau}"
        compared = both if tau == other else f"{left.label}; τ = {tau} minus τ = {other}"
        sides = section.values(left, tau, measure), section.values(right, other, measure)
        return compared, measure, *sides

    def rows(strategy: str) -> list[Arm]:
        """The paper's rows of a strategy, one for each period."""
        plain = [one for one in section.methods if one.name == "pubswap" and one.plain]
        return [one for one in plain if one.strategy == strategy]

    for keep in rows("keep"):
        claim = "keep is better than FedAvg at the largest τ"
        yield claim, 1, *apart(keep, large, FEDAVG, large)
        claim = "keep is better than FedProx at the largest τ"
        yield claim, 1, *apart(keep, large, FEDPROX, large)
        if small != large:
            claim = "keep's gain over FedAvg is larger at the largest τ than at the smallest"
            compared = f"{keep.label}, minus FedAvg; at τ = {large} minus at τ = {small}"
            gains = _gains(section, keep, large), _gains(section, keep, small)
            yield claim, 1, compared, FINAL, *gains
        claim = "fewer responses are replaced later in training"
        compared = f"{keep.label}, τ = {large}: α in the last third minus in the first"
        change = section.values(keep, large, REPLACED_CHANGE)
        yield claim, -1, compared, REPLACED_CHANGE, change, dict.fromkeys(change, 0.0)
    for random in rows("random"):
        keep = replace(random, strategy="keep")
        if small != large:
            claim = "random is better than FedAvg at the smallest τ"
            yield claim, 1, *apart(random, small, FEDAVG, small)
            claim = "random is better than keep at the smallest τ"
            yield claim, 1, *apart(random, small, keep, small)
        claim = "random is worse than keep at the largest τ"
        yield claim, -1, *apart(random, large, keep, large)
    for method in (*rows("random"), *rows("keep")):
        claim = "clients drift less with public steps"
        yield claim, -1, *apart(method, large, FEDAVG, large, DRIFT)
    if small != large:
        claim = "FedAvg falls from the smallest τ to the largest"
        yield claim, -1, *apart(FEDAVG, large, FEDAVG, small)
    claim = "FedProx, with its μ chosen, is worse than FedAvg at the largest τ"
    yield claim, -1, *apart(FEDPROX, large, FEDAVG, large)
    for method in section.methods:
        rest = tuple(s for s in method.variant if not s[0].startswith("aggregation.server_"))
        if method.kind == "federated" and not method.detail and rest != method.variant:
            claim = "a server optimizer helps at the smallest τ"
            yield claim, 1, *apart(method, small, replace(method, variant=rest), small)


def _gains(section: Section, keep: Arm, tau: int) -> Values:
    ours, fedavg = section.values(keep, tau, FINAL), section.values(FEDAVG, tau, FINAL)
    return {seed: ours[seed] - fedavg[seed] for seed in ours.keys() & fedavg.keys()}


Rows = Mapping[str, Mapping[int, float]]


def paper_figures(recipes: set[str]) -> dict[str, Rows]:
    """The paper's figures for these recipes, or for all its recipes if it has none of these."""
    tables = tomllib.loads(files(__package__).joinpath("paper.toml").read_text(encoding="utf-8"))
    return {
        recipe: {
            label: dict(zip(table["taus"], values, strict=True))
            for label, values in table.items()
            if label != "taus"
        }
        for recipe, table in tables.items()
        if recipe in recipes or not recipes & tables.keys()
    }
