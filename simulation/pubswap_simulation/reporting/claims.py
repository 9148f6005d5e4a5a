"""Verdicts on the paper's claims, from differences paired by seed: pure functions.

A claim holds when the whole 95 % interval is on its side of zero, does not when it is on the
other, and is undecided when the interval covers zero. Two seeds decide nothing. Neither do
identical differences: pass@1 counts problems, so they can agree by chance and have no width.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel

from pubswap_simulation.reporting.estimates import ROUNDING, Difference, paired
from pubswap_simulation.reporting.methods import FEDAVG, Arm
from pubswap_simulation.reporting.metrics import FINAL, PAIRWISE, Measure, replaced_change
from pubswap_simulation.reporting.section import Section

FEWEST = 3

Verdict = Literal["holds", "does not", "undecided"]


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
    taus = sorted(section.cells.get(FEDAVG, {}))
    judged = _claims(section, taus[0], taus[-1]) if taus else ()
    return [one for one in judged if one is not None]


def _claims(section: Section, small: int, large: int) -> Iterator[ClaimResult | None]:
    keeps, randoms = _rows(section, "keep"), _rows(section, "random")
    fedavg, fedprox = (FEDAVG, large), (_FEDPROX, large)
    compare = partial(_compare, section)

    for keep in keeps:
        yield compare("keep is better than FedAvg at the largest τ", (keep, large), fedavg)
    for keep in keeps:
        yield compare("keep is better than FedProx at the largest τ", (keep, large), fedprox)
    if small != large:
        for keep in keeps:
            yield _gain_grows(section, keep, small, large)
        for random in randoms:
            at_small, keep = (random, small), replace(random, strategy="keep")
            claim = "random is better than FedAvg at the smallest τ"
            yield compare(claim, at_small, (FEDAVG, small))
            yield compare("random is better than keep at the smallest τ", at_small, (keep, small))
    for random in randoms:
        keep = replace(random, strategy="keep")
        claim = "random is worse than keep at the largest τ"
        yield compare(claim, (random, large), (keep, large), sign=-1)
    for method in [*randoms, *keeps]:
        claim = "clients drift less with public steps"
        yield compare(claim, (method, large), fedavg, sign=-1, measure=PAIRWISE)
    if small != large:
        claim = "FedAvg falls from the smallest τ to the largest"
        yield compare(claim, fedavg, (FEDAVG, small), sign=-1)
    claim = "FedProx, with its μ chosen, is worse than FedAvg at the largest τ"
    yield compare(claim, fedprox, fedavg, sign=-1)
    for keep in keeps:
        yield _fewer_replaced_later(section, keep, large)
    for method in section.methods:
        has_optimizer = "aggregation.server_optimizer" in dict(method.variant)
        if method.kind == "federated" and not method.detail and has_optimizer:
            claim = "a server optimizer helps at the smallest τ"
            rest = [
                setting
                for setting in method.variant
                if not setting[0].startswith("aggregation.server_")
            ]
            without = replace(method, variant=tuple(rest))
            yield compare(claim, (method, small), (without, small))


_FEDPROX = Arm(name="fedprox")
_At = tuple[Arm, int]
Values = Mapping[int, float]  # by seed


def _rows(section: Section, strategy: str) -> list[Arm]:
    """The paper's rows of a strategy, one for each period."""
    return [m for m in section.methods if m.strategy == strategy and m.plain]


def _compare(
    section: Section,
    claim: str,
    treatment: _At,
    baseline: _At,
    *,
    sign: int = 1,
    measure: Measure = FINAL,
) -> ClaimResult | None:
    (left, tau), (right, other) = treatment, baseline
    compared = (
        f"{left.label}, minus {right.label}; τ = {tau}"
        if tau == other
        else f"{left.label}; τ = {tau} minus τ = {other}"
    )
    left_values = section.values(left, tau, measure.of)
    right_values = section.values(right, other, measure.of)
    return _result(claim, compared, left_values, right_values, sign, measure.share)


def _gain_grows(section: Section, keep: Arm, small: int, large: int) -> ClaimResult | None:
    claim = "keep's gain over FedAvg is larger at the largest τ than at the smallest"
    gains = []
    for tau in (large, small):
        with_keep, fedavg = (section.values(method, tau, FINAL.of) for method in (keep, FEDAVG))
        gains.append(
            {seed: with_keep[seed] - fedavg[seed] for seed in with_keep.keys() & fedavg.keys()}
        )
    compared = f"{keep.label}, minus FedAvg; at τ = {large} minus at τ = {small}"
    return _result(claim, compared, gains[0], gains[1], 1)


def _fewer_replaced_later(section: Section, keep: Arm, large: int) -> ClaimResult | None:
    claim = "fewer responses are replaced later in training"
    change = section.values(keep, large, replaced_change)
    compared = f"{keep.label}, τ = {large}: α in the last third minus in the first"
    return _result(claim, compared, change, dict.fromkeys(change, 0.0), -1)


def _result(
    claim: str, compared: str, treatment: Values, baseline: Values, sign: int, share: bool = True
) -> ClaimResult | None:
    """The verdict, or None if no seed has both sides."""
    if (apart := paired(treatment, baseline)) is None:
        return None
    judged = verdict(apart, sign)
    return ClaimResult(
        claim=claim, compared=compared, share=share, difference=apart, verdict=judged
    )


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
