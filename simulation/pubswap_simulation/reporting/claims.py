"""What holds of the paper's claims, from differences that are paired by seed: pure functions.

A claim holds when the whole 95 % interval is on its side of zero, does not when it is on the
other, and is undecided when the interval covers zero. Two seeds decide nothing, nor do differences
that are all the same: pass@1 counts problems, so that they can agree by chance, with no width.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pubswap_simulation.reporting.estimates import ROUNDING, Difference, paired
from pubswap_simulation.reporting.methods import FEDAVG, Method
from pubswap_simulation.reporting.metrics import FINAL, PAIRWISE, Measure, replaced_change
from pubswap_simulation.reporting.section import Section

FEWEST = 3

Verdict = Literal["holds", "does not", "undecided", "not run"]
Values = Mapping[int, float]


class ClaimResult(BaseModel):
    """A claim, what was compared for it, and what came of it."""

    model_config = ConfigDict(frozen=True)

    claim: str
    compared: str
    share: bool
    difference: Difference | None
    verdict: Verdict


def verdict(difference: Difference | None, sign: int) -> Verdict:
    """Whether a difference is what a claim says: above zero for sign = 1, below for -1."""
    if difference is None:
        return "not run"
    seen = difference.scaled(sign)
    if seen.n < FEWEST or seen.low is None or seen.high is None:
        return "undecided"
    if seen.high - seen.low <= ROUNDING or seen.low <= 0 <= seen.high:
        return "undecided"
    return "holds" if seen.low > 0 else "does not"


def findings(section: Section) -> list[ClaimResult]:
    """Every claim at this section's tau; the largest and the smallest are those FedAvg has."""
    taus = sorted(section.cells.get(FEDAVG, {}))
    if not taus:
        return []
    found: list[ClaimResult] = []
    for rule in _RULES:
        found += rule(section, taus[0], taus[-1])
    return found


def _keep_over_fedavg(section: Section, _: int, large: int) -> Iterator[ClaimResult]:
    claim = "keep is better than FedAvg at the largest τ"
    for keep in _rows(section, "keep"):
        yield _compare(section, claim, FINAL, (keep, large), (FEDAVG, large), 1)


def _keep_over_fedprox(section: Section, _: int, large: int) -> Iterator[ClaimResult]:
    claim = "keep is better than FedProx at the largest τ"
    for keep in _rows(section, "keep"):
        yield _compare(section, claim, FINAL, (keep, large), (_FEDPROX, large), 1)


def _gain_grows(section: Section, small: int, large: int) -> Iterator[ClaimResult]:
    claim = "keep's gain over FedAvg is larger at the largest τ than at the smallest"
    if small == large:
        return
    for keep in _rows(section, "keep"):
        gains = [
            _minus(_values(section, FINAL, keep, tau), _values(section, FINAL, FEDAVG, tau))
            for tau in (large, small)
        ]
        compared = f"{keep.label}, minus FedAvg; at τ = {large} minus at τ = {small}"
        yield _finding(claim, compared, FINAL.share, paired(gains[0], gains[1]), 1)


def _random_when_small(section: Section, small: int, large: int) -> Iterator[ClaimResult]:
    if small == large:
        return
    for random in _rows(section, "random"):
        claim = "random is better than FedAvg at the smallest τ"
        yield _compare(section, claim, FINAL, (random, small), (FEDAVG, small), 1)
        keep = _like(random)
        claim = "random is better than keep at the smallest τ"
        yield _compare(section, claim, FINAL, (random, small), (keep, small), 1)


def _random_when_large(section: Section, _: int, large: int) -> Iterator[ClaimResult]:
    claim = "random is worse than keep at the largest τ"
    for random in _rows(section, "random"):
        yield _compare(section, claim, FINAL, (random, large), (_like(random), large), -1)


def _less_drift(section: Section, _: int, large: int) -> Iterator[ClaimResult]:
    claim = "clients drift less with public steps"
    for method in [*_rows(section, "random"), *_rows(section, "keep")]:
        yield _compare(section, claim, PAIRWISE, (method, large), (FEDAVG, large), -1)


def _fedavg_falls(section: Section, small: int, large: int) -> Iterator[ClaimResult]:
    claim = "FedAvg falls from the smallest τ to the largest"
    if small != large:
        yield _compare(section, claim, FINAL, (FEDAVG, large), (FEDAVG, small), -1)


def _fedprox_no_cure(section: Section, _: int, large: int) -> Iterator[ClaimResult]:
    claim = "FedProx, with its μ chosen, is worse than FedAvg at the largest τ"
    yield _compare(section, claim, FINAL, (_FEDPROX, large), (FEDAVG, large), -1)


def _fewer_replaced_later(section: Section, _: int, large: int) -> Iterator[ClaimResult]:
    claim = "fewer responses are replaced later in training"
    for keep in _rows(section, "keep"):
        change = section.values(keep, large, replaced_change)
        compared = f"{keep.label}, τ = {large}: α in the last third minus in the first"
        yield _finding(claim, compared, True, paired(change, dict.fromkeys(change, 0.0)), -1)


def _server_optimizer(section: Section, small: int, _: int) -> Iterator[ClaimResult]:
    claim = "a server optimizer helps at the smallest τ"
    for method in section.methods:
        optimizer = dict(method.variant).get("aggregation.server_optimizer")
        if optimizer and method.kind == "federated" and not method.detail:
            rest = tuple(
                (axis, value)
                for axis, value in method.variant
                if not axis.startswith("aggregation.server_")
            )
            plain = _replaced_variant(method, rest)
            yield _compare(section, claim, FINAL, (method, small), (plain, small), 1)


_Rule = Callable[[Section, int, int], Iterator[ClaimResult]]
_RULES: tuple[_Rule, ...] = (
    _keep_over_fedavg,
    _keep_over_fedprox,
    _gain_grows,
    _random_when_small,
    _random_when_large,
    _less_drift,
    _fedavg_falls,
    _fedprox_no_cure,
    _fewer_replaced_later,
    _server_optimizer,
)
_FEDPROX = Method(name="fedprox")
_At = tuple[Method, int]


def _rows(section: Section, strategy: str) -> list[Method]:
    """The paper's rows of a strategy, one for each period; period 2 if there is none."""
    found = [m for m in section.methods if m.strategy == strategy and m.plain]
    return found or [Method(name="pubswap", strategy=strategy, period=2)]


def _like(random: Method) -> Method:
    return Method(name="pubswap", strategy="keep", period=random.period)


def _replaced_variant(
    method: Method, variant: tuple[tuple[str, bool | int | float | str], ...]
) -> Method:
    return Method(
        kind=method.kind,
        name=method.name,
        strategy=method.strategy,
        period=method.period,
        mu=method.mu,
        variant=variant,
    )


def _compare(
    section: Section, claim: str, measure: Measure, ours: _At, theirs: _At, sign: int
) -> ClaimResult:
    (left, tau), (right, other) = ours, theirs
    compared = (
        f"{left.label}, minus {right.label}; τ = {tau}"
        if tau == other
        else f"{left.label}; τ = {tau} minus τ = {other}"
    )
    difference = paired(
        _values(section, measure, left, tau), _values(section, measure, right, other)
    )
    return _finding(claim, compared, measure.share, difference, sign)


def _finding(
    claim: str, compared: str, share: bool, difference: Difference | None, sign: int
) -> ClaimResult:
    return ClaimResult(
        claim=claim,
        compared=compared,
        share=share,
        difference=difference,
        verdict=verdict(difference, sign),
    )


def _values(section: Section, measure: Measure, method: Method, tau: int) -> Values:
    return section.values(method, tau, measure.of)


def _minus(ours: Values, theirs: Values) -> Values:
    return {seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()}


Rows = Mapping[str, Mapping[int, float]]

_MAIN = (10, 40, 90, 120)
_KEEP = "PubSwap-keep, period {}"


def _paper_rows(taus: tuple[int, ...], **rows: tuple[float, ...]) -> Rows:
    names = {
        "base": "base model",
        "fedavg": "FedAvg",
        "fedprox": "FedProx, best μ",
        "keep2": _KEEP.format(2),
        "keep4": _KEEP.format(4),
        "keep8": _KEEP.format(8),
    }
    return {
        names[key]: dict(zip(taus, values if len(values) > 1 else values * len(taus), strict=True))
        for key, values in rows.items()
    }


FIGURES: Mapping[str, Rows] = {
    "qwen3-1.7b-math": _paper_rows(
        _MAIN,
        base=(55.2,),
        fedavg=(77.9, 75.6, 75.5, 75.9),
        fedprox=(77.5, 76.0, 76.5, 75.6),
        keep2=(77.0, 76.7, 76.9, 76.6),
    ),
    "qwen3-1.7b-deepmath": _paper_rows(
        _MAIN,
        base=(14.9,),
        fedavg=(48.9, 52.7, 50.4, 50.7),
        fedprox=(50.6, 52.3, 48.0, 47.7),
        keep2=(51.1, 53.0, 53.3, 55.8),
    ),
    "qwen2.5-math-1.5b-math": _paper_rows(
        _MAIN,
        base=(58.4,),
        fedavg=(73.5, 72.3, 71.9, 71.1),
        fedprox=(72.8, 71.4, 71.5, 70.6),
        keep2=(72.4, 71.6, 72.5, 71.9),
    ),
    "qwen2.5-math-1.5b-deepmath": _paper_rows(
        _MAIN,
        base=(34.9,),
        fedavg=(51.0, 52.3, 50.5, 49.3),
        fedprox=(52.2, 52.1, 48.0, 49.4),
        keep2=(52.4, 53.1, 50.8, 53.1),
    ),
    "qwen3-4b-deepmath": _paper_rows(
        _MAIN, base=(51.1,), fedavg=(66.9, 66.5, 67.0, 67.4), keep2=(70.0, 65.4, 70.2, 70.5)
    ),
    "llama-3.2-3b-medical": _paper_rows(
        _MAIN, base=(49.2,), fedavg=(58.7, 58.2, 57.9, 56.0), keep2=(57.5, 59.4, 58.5, 58.1)
    ),
    "qwen3-1.7b-deepmath-alpha0.1": _paper_rows(
        (40, 90, 120), base=(14.9,), fedavg=(52.0, 51.6, 51.3), keep2=(53.0, 56.7, 54.9)
    ),
    "qwen3-1.7b-deepmath-periods": _paper_rows(
        (80, 90, 120),
        fedavg=(48.0, 50.4, 50.7),
        fedprox=(46.5, 48.0, 47.7),
        keep2=(52.2, 53.3, 55.8),
        keep4=(54.3, 54.3, 52.5),
        keep8=(53.1, 53.4, 52.6),
    ),
    "qwen2.5-math-1.5b-deepmath-periods": _paper_rows(
        (90, 120),
        fedavg=(50.5, 49.3),
        fedprox=(48.0, 49.4),
        keep2=(51.0, 53.1),
        keep4=(52.3, 53.6),
        keep8=(51.9, 51.7),
    ),
}


def figures(recipes: set[str]) -> Mapping[str, Rows]:
    """Those of the recipes that the paper has; of all its recipes if it has none of these."""
    found = {recipe: rows for recipe, rows in FIGURES.items() if recipe in recipes}
    return found or FIGURES
