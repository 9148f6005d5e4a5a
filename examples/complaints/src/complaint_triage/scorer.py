"""The score of one response: the share of its fields that are right, by weight.

A response states one JSON object, with any text around it:

    {"category": "card", "amount": 120.5, "date": "2026-03-01"}

The reference answer is such an object, too. A field that neither has does not count; one that only
the response has is wrong. What is not exactly one such object scores 0: several objects, a field
twice, a field of another name, NaN.
"""

import json
import math
from collections.abc import Mapping
from datetime import date
from importlib.resources import files
from typing import Any

WEIGHTS = {"category": 0.5, "amount": 0.3, "date": 0.2}
TOLERANCE = 0.01  # of an amount, in its currency; a problem's metadata may set another

_NAMES: dict[str, list[str]] = json.loads(
    files(__package__).joinpath("categories.json").read_text(encoding="utf-8")
)
_CATEGORIES = {name: key for key, names in _NAMES.items() for name in [key, *names]}


def score(response: str, *, prompt: str, answer: str, metadata: Mapping[str, Any]) -> float:
    """How much of the triage is right, from 0 to 1.

    Raises ValueError if the reference answer or the tolerance is unusable.
    """
    reference = _fields(answer)
    if reference.get("category") is None:
        raise ValueError("the reference answer has no category")
    tolerance = _number(metadata.get("tolerance", TOLERANCE))
    try:
        # A policy that thinks first may write drafts; only its answer counts.
        given = _fields(response.rpartition("</think>")[2])
    except (ValueError, RecursionError):
        return 0.0
    counted = [name for name in WEIGHTS if name in reference or name in given]
    right = [
        name
        for name in counted
        if name in reference and name in given and _equal(given[name], reference[name], tolerance)
    ]
    return sum(WEIGHTS[name] for name in right) / sum(WEIGHTS[name] for name in counted)


def _equal(given: str | float | date, reference: str | float | date, tolerance: float) -> bool:
    if isinstance(given, float) and isinstance(reference, float):
        # A little more, because 0.3 - 0.2 is not 0.1 in binary.
        return math.isclose(given, reference, rel_tol=1e-9, abs_tol=tolerance * (1 + 1e-9))
    return given == reference


def _fields(text: str) -> dict[str, str | float | date]:
    """The fields of the only object in a text; those that are null are left out.

    Raises ValueError if there is no such object, or another beside it.
    """
    start = text.find("{")
    if start < 0:
        raise ValueError("no object")
    found, end = _DECODER.raw_decode(text, start)
    if "{" in text[end:]:
        raise ValueError("several objects")
    if unknown := found.keys() - WEIGHTS.keys():
        raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
    return {name: _READ[name](value) for name, value in found.items() if value is not None}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field occurs twice")
    return fields


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


# Whole numbers are read as floats, because those of thousands of digits are slow.
_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refused, parse_int=float)


def _category(value: object) -> str:
    """The category of a name. Raises ValueError if it is none."""
    if not isinstance(value, str) or (name := value.strip().casefold()) not in _CATEGORIES:
        raise ValueError("not a category")
    return _CATEGORIES[name]


def _number(value: object) -> float:
    """A finite number that is not negative. Raises ValueError if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    if not 0 <= value < math.inf:
        raise ValueError("not a number from 0")
    return float(value)


def _date(value: object) -> date:
    """A date such as 2026-03-01. Raises ValueError if it is none."""
    if not isinstance(value, str) or len(value) != len("2026-03-01"):
        raise ValueError("not a date")
    return date.fromisoformat(value)


_READ = {"category": _category, "amount": _number, "date": _date}
