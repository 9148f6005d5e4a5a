"""One contrast named before the runs, and all others with its first row, corrected by Holm."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.reporting.estimates import Difference, holm, p_value, paired
from pubswap_simulation.reporting.methods import BASE, Method
from pubswap_simulation.reporting.metrics import FINAL
from pubswap_simulation.reporting.section import Section

MINUS = " - "


class Contrast(Difference):
    """Final pass@1 of one row less another's at the same tau, paired by seed."""

    contrast: str
    tau: int
    by_seed: dict[int, float]
    p: float | None = None
    corrected: float | None = None  # p, by Holm's method over all exploratory contrasts


@dataclass(frozen=True)
class Contrasts:
    """The primary contrast, and the exploratory ones."""

    primary: Contrast
    exploratory: tuple[Contrast, ...]


def contrasts(sections: Iterable[Section], named: str) -> Contrasts:
    """Of "ROW - ROW", in the first section that has both, at the largest tau that both have.

    Exploratory is the first of the two less every other row at that tau. Raises InvalidSettings.
    """
    sections = list(sections)
    left, _, right = named.partition(MINUS)
    for section in sections:
        rows = {method.label: method for method in section.methods}
        if left in rows and right in rows and (taus := _taus(section, rows[left], rows[right])):
            return _contrasts(section, rows[left], rows[right], taus[-1])
    labels = sorted({method.label for section in sections for method in section.methods})
    raise InvalidSettings(
        f"--primary {named!r}: give two rows of one section with a seed in common, as "
        f"{MINUS.join(labels[:2])!r}. There are: {'; '.join(labels)}."
    )


def _taus(section: Section, left: Method, right: Method) -> list[int]:
    return [
        tau
        for tau in section.taus
        if _finals(section, left, tau).keys() & _finals(section, right, tau).keys()
    ]


def _finals(section: Section, method: Method, tau: int) -> Mapping[int, float]:
    return section.values(method, tau, FINAL.of)


def _contrasts(section: Section, left: Method, right: Method, tau: int) -> Contrasts:
    others = [
        method
        for method in section.methods
        if method not in (left, right, BASE) and not method.detail
    ]
    found = [_contrast(section, left, other, tau) for other in others]
    primary = _contrast(section, left, right, tau)
    assert primary is not None, "there is a seed that both have"
    return Contrasts(primary, tuple(corrected([one for one in found if one is not None])))


def _contrast(section: Section, left: Method, right: Method, tau: int) -> Contrast | None:
    ours, theirs = _finals(section, left, tau), _finals(section, right, tau)
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


def corrected(found: Sequence[Contrast]) -> list[Contrast]:
    """With Holm's correction over those that have a p-value."""
    tested = [one.p for one in found if one.p is not None]
    values = iter(holm(tested))
    return [
        one if one.p is None else one.model_copy(update={"corrected": next(values)})
        for one in found
    ]
