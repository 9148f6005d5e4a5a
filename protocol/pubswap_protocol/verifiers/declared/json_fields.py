"""`json`: an object with the right fields, such as a complaint's category and amount."""

import json
import math
import re
from decimal import Decimal
from typing import Annotated, Any, NoReturn, Self

from pydantic import AfterValidator, Field, StrictBool, model_validator

from pubswap_protocol.bounds import Factor, PositiveFactor, Strict, unique_keys
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.declared.number import MAX_NUMERAL, within
from pubswap_protocol.verifiers.declared.text import folded
from pubswap_protocol.verifiers.extract import first_of
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier

_MAX_CHARACTERS = 1 << 16
# Python's own limit on nesting is not the same in all versions.
_MAX_LEVELS = 64
# What looks like the beginning of an object is read to its end or the text's, so often at most.
_MAX_READ = 8 * _MAX_CHARACTERS

_FENCE = re.compile(r"^[ \t]*+```json\b\s*+", re.IGNORECASE | re.MULTILINE)
_FENCE_END = re.compile(r"\s*+(?:```|\Z)")
_OBJECT = re.compile(r'\{\s*+"')
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[\]{}"]', re.DOTALL)
_NUMERAL = re.compile(r"[^eE]++(?:[eE][+-]?\d{1,2})?")
_ABSENT = object()


class JsonField(Strict):
    """A field of the answer, and how it is compared with the reference answer's."""

    name: Annotated[str, Field(min_length=1, max_length=200, strict=True)] = Field(
        description="Its key, or the keys that lead to it with dots between: 'customer.city'."
    )
    weight: PositiveFactor = Field(default=1.0, description="Its part of the score.")
    tolerance: Factor = Field(
        default=0.0, description="Largest difference of a number that is right."
    )
    set: StrictBool = Field(
        default=False, description="Whether a list is right in any order, with repeats or without."
    )

    @model_validator(mode="after")
    def _has_one_comparison(self) -> Self:
        if self.set and self.tolerance:
            raise ValueError("a field has a tolerance or is a set, not both; leave one out")
        return self

    def is_right(self, given: Any, gold: Any) -> bool:
        """Whether a value in its plain form is the reference's."""
        if given is _ABSENT or gold is _ABSENT:
            return False
        if self.tolerance:
            numbers = isinstance(given, Decimal) and isinstance(gold, Decimal)
            return numbers and within(given, gold, self.tolerance)
        if self.set:
            lists = isinstance(given, list) and isinstance(gold, list)
            return lists and _members(given) == _members(gold)
        return bool(given == gold)

    def fault(self, gold: Any) -> str | None:
        """Why it cannot be compared with the reference's value."""
        if gold is _ABSENT:
            return f"the answer has no field {self.name!r}"
        if self.tolerance and not isinstance(gold, Decimal):
            return f"the field {self.name!r} has a tolerance, but the answer's is not a number"
        if self.set and not isinstance(gold, list):
            return f"the field {self.name!r} is a set, but the answer's is not a list"
        return None


def _differ(fields: tuple[JsonField, ...]) -> tuple[JsonField, ...]:
    # Several tolerances for one field give a part of its weight for a near miss.
    kinds = [(field.name, field.tolerance, field.set) for field in fields]
    if again := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise ValueError(f"the field {again[0]!r} occurs twice; leave it out once")
    return fields


Fields = Annotated[
    tuple[JsonField, ...], Field(max_length=100, fail_fast=True), AfterValidator(_differ)
]


@VERIFIERS.register
class JsonFields(Verifier):
    """Weighted share of the fields of a JSON object that are as in the problem's answer.

    The last ```json fence counts, else the last object of the response. Further fields are
    ignored: a value counts only under its own key. What is not JSON scores 0: also repeated keys,
    NaN, other text within the fence, more than 64 levels, and numbers of more than 400 characters
    or an exponent beyond 99.
    """

    name = "json"
    quick = True
    by_problem = frozenset({"fields"})

    fields: Fields = Field(
        default=(),
        description="Fields that count, such as { name = 'amount', weight = 2, tolerance = 0.01 }. "
        "None: all fields of the problem's answer, each of which must be equal, text up to case "
        "and white space.",
    )

    def score(self, response: str, problem: Problem) -> float:
        gold = _object(problem.answer)
        text = first_of(response, lambda whole: whole)
        given = None if gold is None or text is None else _answer(text)
        if gold is None or given is None:
            return 0.0
        fields = self._paths(gold)
        right = [f.weight for path, f in fields if f.is_right(_at(given, path), _at(gold, path))]
        if not right or len(right) == len(fields):
            return float(bool(right))
        return min(math.fsum(right) / math.fsum(field.weight for _, field in fields), 1.0)

    def fault(self, problem: Problem) -> str | None:
        gold = _object(problem.answer)
        if gold is None:
            return (
                "the answer must be one JSON object in text, such as "
                '"{\\"category\\": \\"fees\\", \\"amount\\": 12.5}", without repeated keys'
            )
        if not gold:
            return "the answer is an object without fields; add the fields that count"
        faults = (field.fault(_at(gold, path)) for path, field in self._paths(gold))
        if fault := next(filter(None, faults), None):
            return fault
        if self.score(self.right_response(problem), problem) != 1.0:
            return "the answer cannot be told from a response's layout"
        return None

    def right_response(self, problem: Problem) -> str:
        return f"The answer:\n```json\n{problem.answer}\n```"

    def _paths(self, gold: dict[str, Any]) -> list[tuple[list[str], JsonField]]:
        """The fields that count, with the keys that lead to them."""
        if self.fields:
            return [(field.name.split("."), field) for field in self.fields]
        return [([key], JsonField(name="any")) for key in gold]


def _at(value: Any, path: list[str]) -> Any:
    for key in path:
        value = value.get(key, _ABSENT) if isinstance(value, dict) else _ABSENT
    return value


def _answer(text: str) -> dict[str, Any] | None:
    """The object of the last fence, else the last object of the text, if it is strict JSON."""
    if fences := list(_FENCE.finditer(text)):
        start = fences[-1].end()
        end = _end(text, start) if text.startswith("{", start) else None
        return _object(text[start:end]) if end and _FENCE_END.match(text, end) else None
    start, last, left = 0, "", _MAX_READ
    while left > 0 and (opening := _OBJECT.search(text, start)):
        end = _end(text, opening.start())
        last = text[opening.start() : end] if end else last
        start = end or opening.end() - 1
        left -= (end or len(text)) - opening.start()
    return _object(last) if left > 0 else None


def _end(text: str, start: int) -> int | None:
    """Where the brackets that open at `start` are closed again; None if they are not."""
    level = 0
    for token in _TOKEN.finditer(text, start):
        sign = token[0]
        if sign == '"':  # a string without an end
            return None
        level += (sign in ("{", "[")) - (sign in ("}", "]"))
        if level == 0 and sign[0] != '"':
            return token.end()
    return None


def _levels(text: str) -> int:
    """How deeply JSON is nested."""
    level = deepest = 0
    for token in _TOKEN.finditer(text):
        level += (token[0] in ("{", "[")) - (token[0] in ("}", "]"))
        deepest = max(deepest, level)
    return deepest


def _object(text: str) -> dict[str, Any] | None:
    """An object of strict JSON, its values in plain form; None if the text is anything else."""
    if len(text) > _MAX_CHARACTERS or _levels(text) > _MAX_LEVELS:
        return None
    try:
        value = json.loads(
            text,
            parse_float=_number,
            parse_int=_number,
            parse_constant=_no_number,
            object_pairs_hook=unique_keys,
        )
    except ValueError:
        return None
    return _plain(value) if isinstance(value, dict) else None


def _number(numeral: str) -> Decimal:
    if len(numeral) > MAX_NUMERAL or not _NUMERAL.fullmatch(numeral):
        raise ValueError("the number is too long or too large")
    return Decimal(numeral)


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _plain(value: Any) -> Any:
    """A value that equals, in Python, the values that are the same: true is not 1."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bool):
        return "true", value
    return folded(value) if isinstance(value, str) else value


def _members(values: list[Any]) -> frozenset[Any]:
    return frozenset(map(_hashable, values))


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset((key, _hashable(each)) for key, each in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
