"""The contrast named before the runs, and all others of its first row, with Holm's correction."""

from collections.abc import Iterable, Sequence

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.estimates import Difference, holm, p_value, paired
from pubswap_simulation.reporting.methods import BASE, Arm
from pubswap_simulation.reporting.metrics import FINAL
from pubswap_simulation.reporting.section import Section
from pubswap_simulation.reporting.tables import measured

MINUS = " - "
AT = ", τ "


class Contrast(Difference):
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
        treatment, baseline = rows.get(left), rows.get(right)
        if treatment is None or baseline is None:
            continue
        if primary := _contrast(section, treatment, baseline, named):
            (first, first_tau), (second, _) = treatment, baseline
            compared = [
                _contrast(section, treatment, (other, first_tau), first.label + MINUS + other.label)
                for other in section.methods
                if other not in (first, second, BASE) and not other.detail
            ]
            return primary, _corrected([one for one in compared if one is not None])
    labels = sorted({method.label for section in sections for method in section.methods})
    raise InvalidSettings(
        f"--primary {named!r}: give two rows of one section with a seed in common, as "
        f"{MINUS.join(labels[:2])!r}. There are: {'; '.join(labels)}."
    )


def _contrast(
    section: Section, left: tuple[Arm, int], right: tuple[Arm, int], name: str
) -> Contrast | None:
    treatment, baseline = (measured(section, *row, FINAL) for row in (left, right))
    difference = paired(treatment, baseline)
    if difference is None:
        return None
    return Contrast(
        **difference.model_dump(),
        contrast=name,
        tau=left[1],
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
