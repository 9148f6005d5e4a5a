"""The contrast named before the runs, and all others of its first row, with Holm's correction."""

from collections.abc import Iterable

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.estimates import Difference, holm, p_value, paired
from pubswap_simulation.reporting.measures import FINAL
from pubswap_simulation.reporting.methods import BASE, Arm
from pubswap_simulation.reporting.section import Section

MINUS = " - "
AT = ", τ "


class Contrast(Difference, frozen=True):
    """Final pass@1 of one row less another's, paired by seed; `tau` is the first row's."""

    contrast: str
    tau: int
    by_seed: dict[int, float]
    p: float | None = None
    corrected: float | None = None  # p, by Holm's method over all exploratory contrasts

    @property
    def title(self) -> str:
        """The rows, with their tau."""
        return self.contrast if AT in self.contrast else f"{self.contrast}{AT}{self.tau}"


def contrasts(sections: Iterable[Section], named: str) -> tuple[Contrast, list[Contrast]]:
    """The contrast "ROW - ROW", and the exploratory ones.

    It is taken at the largest tau at which a section has both rows, and from the first such
    section. "ROW, τ 48 - ROW, τ 4" compares rows at these taus. The exploratory contrasts are its
    first row less every other row at that tau.

    Raises InvalidSettings if no section has both.
    """
    sections = list(sections)
    left, _, right = named.partition(MINUS)
    by_tau = [(tau, section) for section in sections for tau in section.taus]
    for tau, section in sorted(by_tau, key=lambda each: -each[0]):
        rows = {method.label: (method, tau) for method in section.methods}
        for own in section.taus:
            rows |= {f"{method.label}{AT}{own}": (method, own) for method in section.methods}
        if left not in rows or right not in rows:
            continue
        (first, first_tau), (second, _) = rows[left], rows[right]
        if primary := _contrast(section, rows[left], rows[right], named):
            found = [
                _contrast(
                    section, rows[left], (other, first_tau), first.label + MINUS + other.label
                )
                for other in section.methods
                if other not in (first, second, BASE) and not other.detail
            ]
            others = [one for one in found if one is not None]
            corrected = iter(holm([one.p for one in others if one.p is not None]))
            return primary, [
                one if one.p is None else one.model_copy(update={"corrected": next(corrected)})
                for one in others
            ]
    labels = sorted({method.label for section in sections for method in section.methods})
    raise InvalidSettings(
        f"--primary {named!r}: give two rows of one section with a seed in common, as "
        f"{MINUS.join(labels[:2])!r}. There are: {'; '.join(labels)}."
    )


def _contrast(
    section: Section, left: tuple[Arm, int], right: tuple[Arm, int], name: str
) -> Contrast | None:
    ours, theirs = (section.values(*row, FINAL) for row in (left, right))
    if (difference := paired(ours, theirs)) is None:
        return None
    return Contrast(
        **difference.model_dump(),
        contrast=name,
        tau=left[1],
        by_seed={seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())},
        p=p_value(difference),
    )
