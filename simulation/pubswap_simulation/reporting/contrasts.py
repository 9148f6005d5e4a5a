"""The contrast named before the runs, and all others of its first row, with Holm's correction."""

from collections.abc import Iterable, Sequence

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.estimates import Difference, holm, p_value, paired
from pubswap_simulation.reporting.methods import BASE, Method
from pubswap_simulation.reporting.metrics import FINAL
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.reporting.tables import measured

MINUS = " - "


class Contrast(Difference):
    """Final pass@1 of one row less another's at the same tau, paired by seed."""

    contrast: str
    tau: int
    by_seed: dict[int, float]
    p: float | None = None
    corrected: float | None = None  # p, by Holm's method over all exploratory contrasts


def contrasts(sections: Iterable[Section], named: str) -> tuple[Contrast, list[Contrast]]:
    """The contrast "ROW - ROW", and the exploratory ones.

    It is taken from the first section that has both rows, at the largest tau that both have. The
    exploratory contrasts are its first row less every other row at that tau.

    Raises InvalidSettings if no section has both.
    """
    sections = list(sections)
    left, _, right = named.partition(MINUS)
    for section in sections:
        rows = {method.label: method for method in section.methods}
        treatment, baseline = rows.get(left), rows.get(right)
        if treatment is None or baseline is None:
            continue
        for tau in reversed(section.taus):
            if primary := _contrast(section, treatment, baseline, tau):
                excluded = (treatment, baseline, BASE)
                rest = [m for m in section.methods if m not in excluded and not m.detail]
                compared = [_contrast(section, treatment, other, tau) for other in rest]
                return primary, _corrected([one for one in compared if one is not None])
    labels = sorted({method.label for section in sections for method in section.methods})
    raise InvalidSettings(
        f"--primary {named!r}: give two rows of one section with a seed in common, as "
        f"{MINUS.join(labels[:2])!r}. There are: {'; '.join(labels)}."
    )


def _contrast(section: Section, left: Method, right: Method, tau: int) -> Contrast | None:
    treatment, baseline = (measured(section, method, tau, FINAL) for method in (left, right))
    difference = paired(treatment, baseline)
    if difference is None:
        return None
    return Contrast(
        **difference.model_dump(),
        contrast=left.label + MINUS + right.label,
        tau=tau,
        by_seed={
            seed: treatment[seed] - baseline[seed]
            for seed in sorted(treatment.keys() & baseline.keys())
        },
        p=p_value(difference),
    )


def _corrected(exploratory: Sequence[Contrast]) -> list[Contrast]:
    """Apply Holm's correction to those that have a p-value."""
    values = iter(holm([contrast.p for contrast in exploratory if contrast.p is not None]))
    return [
        contrast if contrast.p is None else contrast.model_copy(update={"corrected": next(values)})
        for contrast in exploratory
    ]
