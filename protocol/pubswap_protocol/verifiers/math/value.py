"""The value of a formula: a fraction, or a number with many digits where it is irrational."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from mpmath import mp

from pubswap_protocol.verifiers.math.form import operations
from pubswap_protocol.verifiers.math.grammar import Node, symbols
from pubswap_protocol.verifiers.math.tokens import Unreadable
from pubswap_protocol.verifiers.math.units import SCALES

MAX_BITS = 20_000
MAX_ARGUMENT = 10**9
DIGITS = 100
_AGREE = 60  # digits
_POINTS = 6


def same_value(gold: Node, answer: Node) -> bool:
    """Whether two formulas are equal; those with unknowns are compared at some points.

    A decimal number may be rounded to six decimals, and below 1 to four significant digits if
    these are more. That two unlike formulas agree at all points has no chance.
    """
    with mp.workdps(DIGITS):
        pairs = _values(gold, answer)
        if symbols(gold) or not pairs or not (_has_decimals(gold) or _has_decimals(answer)):
            return bool(pairs) and all(_near(*pair) for pair in pairs)
        ((left, right),) = pairs
        size = abs(left + mp.mpf(0))
        decimals = max(6, 3 - int(mp.floor(mp.log10(size)))) if 0 < size < 1 else 6
        return bool(2 * abs(left + -right) * 10**decimals <= 1) or _near(left, right)


def same_solutions(gold: Node, answer: Node, *, positive: bool) -> bool:
    """Whether two formulas agree up to a constant factor, so that one is 0 where the other is."""
    with mp.workdps(DIGITS):
        pairs = _values(gold, answer)
        if not pairs or any(left == 0 or right == 0 for left, right in pairs):
            return False
        ratios = [left * (1 / right) for left, right in pairs]
        signed = not positive or bool(mp.re(ratios[0]) > 0)
        return signed and all(_near(ratios[0], ratio) for ratio in ratios)


def _has_decimals(node: Node) -> bool:
    return node.name == "." or any(map(_has_decimals, node.parts))


def _values(left: Node, right: Node) -> list[tuple[Any, Any]]:
    """Both values at each point where one is defined; none if only one is, or at few points."""
    names = sorted(symbols(left) | symbols(right))
    counts = [operations(side) for side in (left, right)]
    signed = any(counts[0][name] != counts[1][name] for name in ("root", "function"))
    pairs = []
    for turn in range(_POINTS if names else 1):
        point = {
            name: (-1 if signed and turn % 2 else 1)
            * Fraction(97 + 31 * turn + 53 * place * (turn + 1), 89 + 7 * turn + 3 * place)
            for place, name in enumerate(names)
        }
        values = (_evaluated(left, point), _evaluated(right, point))
        if None not in values:
            pairs.append(values)
        elif values != (None, None):
            return []
    return pairs if len(pairs) * 2 >= _POINTS or not names else []


def _near(left: Any, right: Any) -> bool:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    return bool(abs(left + -right) * 10**_AGREE - abs(left) <= 0)


def _evaluated(node: Node, point: Mapping[str, Any]) -> Any:
    """The value at a point; None where it is not defined."""
    try:
        value = _value(node, {**point, "\\pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)})
    except (ArithmeticError, ValueError, mp.NoConvergence):
        return None
    return value if mp.isfinite(mp.re(value)) and mp.isfinite(mp.im(value)) else None


def _value(node: Node, known: Mapping[str, Any]) -> Any:
    if node.op == "number":
        return node.value
    if node.op == "symbol" and node.name in known:
        return known[node.name]
    values = [_value(part, known) for part in node.parts]
    if node.op in _OPERATIONS:
        value = _OPERATIONS[node.op](*values)
    elif node.op == "unit":
        value = _scaled(values[0], node.name)
    elif node.op == "function":
        value = _function(node.name, *values)
    else:
        raise Unreadable
    if isinstance(value, Fraction) and _bits(value) > MAX_BITS:
        raise Unreadable
    return value


def _power(base: Any, exponent: Any) -> Any:
    size = _bits(base) * 10**9 // MAX_BITS if isinstance(base, Fraction) else 1
    if abs(exponent) * size > MAX_ARGUMENT:
        raise Unreadable
    if isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            return base**exponent.numerator
        if exponent.denominator % 2 and isinstance(base, Fraction) and base < 0:
            return (-1) ** exponent.numerator * mp.power(-base, exponent)
    return mp.power(base, exponent)


def _function(name: str, value: Any, base: Any = None) -> Any:
    if name == "abs":
        return abs(value)
    if name in ("ln", "log"):
        usual = 10 if name == "log" else mp.e
        return mp.log(value) / mp.log(usual if base is None else base)
    if abs(value) > MAX_ARGUMENT:
        raise Unreadable
    return getattr(mp, name.replace("arc", "a"))(value)


def _scaled(value: Any, unit: str) -> Any:
    for word in unit.split():
        if word not in SCALES and word != "degree":
            raise Unreadable
        value *= SCALES[word] if word in SCALES else mp.pi / 180
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _whole(of: Callable[..., int]) -> Callable[..., Fraction]:
    """A function of integers from 0 to 2000."""

    def exact(*values: Any) -> Fraction:
        if any(value not in range(2001) for value in values):
            raise Unreadable
        return Fraction(of(*map(int, values)))

    return exact


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda *terms: sum(terms),
    "product": lambda *factors: math.prod(factors),
    "negative": lambda value: -value,
    "quotient": lambda top, bottom: top * (1 / bottom),
    "divided": lambda top, bottom: top * (1 / bottom),
    "power": _power,
    "root": lambda value, index: _power(value, 1 / index),
    "factorial": _whole(math.factorial),
    "binomial": _whole(math.comb),
}
