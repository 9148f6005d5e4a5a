"""Units, and the words that scale a number, such as percent or million."""

import re
from collections.abc import Iterable
from fractions import Fraction


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


# Each unit by its first name; the others are read as it.
_NAMES = """cm centimeter centimetre|mm millimeter millimetre|km kilometer kilometre
m meter metre|in inch inches|ft foot feet|yd yard|mi mile|kg kilogram|g gram|mg milligram
lb lbs pound|oz ounce|h hr hour|min minute|s sec second|ms|day|week|month|year|L l liter litre
mL ml milliliter|J joule|kJ|eV|keV|MeV|N newton|W watt|kW|V volt|A ampere|Hz|kHz|MHz|Pa|kPa|K
mol|rad radian|m/s|km/h kph|mph mi/h|square sq|cubic cu|per|$ \\$ dollar USD|\u20ac euro EUR|\u00a3
\u00a5 yen|cent|unit|C celsius|F fahrenheit|people person|percent % \\%|degree"""
SCALES: dict[str, Fraction | int] = {
    **{"percent": Fraction(1, 100), "dozen": 12, "score": 20, "hundred": 100},
    **{"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12},
}
# What one side may omit: 8.5 for 8.5 million, but not 3 for 3 dozen.
OMITTED = ("percent", "degree", "thousand", "million", "billion", "trillion")
CURRENCIES = ("\\$", "\u20ac", "\u00a3", "\u00a5")
UNITS = {name: name for name in SCALES} | {
    name: names[0] for names in map(words, re.split(r"[|\n]", _NAMES)) for name in names
}
UNITS |= {name.lower(): first for name, first in UNITS.items() if len(name) > 2}
UNITS |= {f"{name}s": first for name, first in UNITS.items() if len(name) > 2}
# 19 halves are not 19.
_COUNTING = words(
    "halves thirds quarters fourths fifths sixths sevenths eighths ninths tenths hundredths "
    "thousandths tens ones pairs times plus minus less unless"
)


def unit_name(named: Iterable[str]) -> str:
    """A unit by its usual name: square feet and ft^2 are one."""
    names = [UNITS.get(word) or UNITS.get(word.lower()) or word.lower() for word in named]
    names = ["/" if name == "per" else name for name in names if name not in (".", "-", "{", "}")]
    if names[0] in ("square", "cubic"):
        names = [*names[1:2], "^", "2" if names[0] == "square" else "3", *names[2:]]
    joined = " ".join(names).replace(" / ", "/")
    return UNITS.get(joined, joined)


def split_scale(unit: str) -> tuple[str, str]:
    """The words of a unit that scale the number, and the others."""
    scales = [word for word in unit.split() if word in SCALES or word == "degree"]
    return " ".join(scales), " ".join(word for word in unit.split() if word not in scales)


def may_name(unit: str, gold: str, prompt: str) -> bool:
    """Whether an answer may name a unit: it is the gold's, known, a plural, or in the question."""
    if gold:
        return _singular(unit) == _singular(gold)
    named = re.findall(r"[^\W\d_]+|[$\u20ac\u00a3\u00a5]", unit)
    if named == [unit] and len(unit) > 3 and unit.endswith("s") and unit not in _COUNTING:
        return True
    asked = _singular(" ".join(re.findall("[a-z]+", prompt.lower())))
    return "_" not in unit and all(word in UNITS or _singular(word)[0] in asked for word in named)


def _singular(text: str) -> list[str]:
    return [word.removesuffix("s") if len(word) > 3 else word for word in text.split()]
