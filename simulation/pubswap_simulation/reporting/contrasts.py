"""The contrast named before the runs, and all others of its first row, with Holm's correction."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.estimates import Difference, holm, paired
from pubswap_simulation.reporting.section import Cell, Section, final

MINUS = " - "


@dataclass(frozen=True)
class Contrast:
    """Final pass@1 of one row less another's, paired by seed; `tau` is the first row's."""

    name: str
    tau: int
    difference: Difference
    corrected: float | None = None  # p, by Holm's method over all exploratory contrasts


Contrasts = tuple[Contrast, list[Contrast]]  # the named one, and the exploratory ones


def contrasts(sections: Sequence[Section], named: str) -> Contrasts:
    """The contrast "ROW - ROW", and the exploratory ones.

    It is taken at the largest tau at which a section has both rows, and from the first such
    section. "ROW, τ 48 - ROW, τ 4" compares rows at these taus. The exploratory contrasts are its
    first row less every other row at that tau.

    Raises InvalidSettings if no section has both.
    """
    left, _, right = named.partition(MINUS)
    by_tau = [(tau, section) for section in sections for tau in section.taus]
    for tau, section in sorted(by_tau, key=lambda each: -each[0]):
        rows = {row.label: (row, own) for row, own in section.cells if own == tau}
        rows |= {f"{row.label}, τ {own}": (row, own) for row, own in section.cells}
        if left in rows and right in rows:
            first, second = rows[left], rows[right]
            if primary := _contrast(section, first, second, named):
                return primary, _exploratory(section, first, second)
    labels = sorted({row.label for section in sections for row, _ in section.cells})
    raise InvalidSettings(
        f"--primary {named!r}: give two rows of one section with a seed in common, as "
        f"{MINUS.join(labels[:2])!r}. There are: {'; '.join(labels)}."
    )


def _exploratory(section: Section, first: Cell, second: Cell) -> list[Contrast]:
    found = [
        contrast
        for row, tau in section.cells
        if tau == first[1] and row not in (first[0], second[0])
        if (contrast := _contrast(section, first, (row, tau), f"…{MINUS}{row.label}"))
    ]
    p_values = [(one.name, p) for one in found if (p := one.difference.p_value) is not None]
    corrected = holm([p for _, p in p_values])
    by_name = dict(zip([name for name, _ in p_values], corrected, strict=True))
    return [replace(one, corrected=by_name.get(one.name)) for one in found]


def _contrast(section: Section, left: Cell, right: Cell, name: str) -> Contrast | None:
    difference = paired(section.values(left, final), section.values(right, final))
    return Contrast(name, left[1], difference) if difference else None
