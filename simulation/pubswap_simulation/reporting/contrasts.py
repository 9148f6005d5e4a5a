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
        ours, theirs = rows.get(left), rows.get(right)
        if ours is None or theirs is None:
            continue
        for tau in reversed(section.taus):
            if primary := _contrast(section, ours, theirs, tau):
                named_ones = (ours, theirs, BASE)
                rest = [m for m in section.methods if m not in named_ones and not m.detail]
                found = [_contrast(section, ours, other, tau) for other in rest]
                return primary, _corrected([one for one in found if one is not None])
    labels = sorted({method.label for section in sections for method in section.methods})
    raise InvalidSettings(
        f"--primary {named!r}: give two rows of one section with a seed in common, as "
        f"{MINUS.join(labels[:2])!r}. There are: {'; '.join(labels)}."
    )


def _contrast(section: Section, left: Method, right: Method, tau: int) -> Contrast | None:
    ours, theirs = (measured(section, method, tau, FINAL) for method in (left, right))
    difference = paired(ours, theirs)
    if difference is None:
        return None
    return Contrast(
        **difference.model_dump(),
        contrast=left.label + MINUS + right.label,
        tau=tau,
        by_seed={seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())},
        p=p_value(difference),
    )


def _corrected(found: Sequence[Contrast]) -> list[Contrast]:
    """Apply Holm's correction to those that have a p-value."""
    values = iter(holm([one.p for one in found if one.p is not None]))
    return [
        one if one.p is None else one.model_copy(update={"corrected": next(values)})
        for one in found
    ]
