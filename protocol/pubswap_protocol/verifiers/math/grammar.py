"""A formula as a tree: one small grammar, which must read all of an answer or raises Unreadable."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from pubswap_protocol.verifiers.math.tokens import FUNCTIONS, GREEK, Token, Unreadable
from pubswap_protocol.verifiers.math.units import CURRENCIES, unit_name, words

MAX_DEPTH = 60

_RELATIONS = {
    **{"=": "=", r"\approx": "=", r"\in": "=", "<": "<", ">": ">"},
    **{r"\le": "<=", r"\ge": ">=", r"\ne": "!="},
}
_SEPARATORS = (",", ";", r"\\", r"\quad", "and", "or")
_CLOSING = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", "{": "}"}
_NAMES = {f"\\{name}" for name in GREEK} | {f"\\{name.capitalize()}" for name in GREEK}
_NAMES |= {f"\\{name}" for name in words("infty emptyset dots ell varepsilon vartheta varphi")}
_TEXT = re.compile(r"[^_{}\\+|()]*")
_UNIT = re.compile(r"(?:[^\d+|()]|\^ (?:\{ )?-? ?\d)*")
_APPLIED = set("fghFGHP")


@dataclass(frozen=True)
class Node:
    """A part of a formula: what it is, its parts, and its name or value."""

    op: str
    parts: tuple["Node", ...] = ()
    name: str = ""
    value: Fraction = Fraction(0)


def number(value: Fraction | int, name: str = "") -> Node:
    """A literal number; the name is "." for a decimal one, which may be rounded."""
    return Node("number", (), name, Fraction(value))


def literal(text: str) -> Node:
    """A number as it is written; 0.1\\overline{6} is 1/6, and 1 1/2 is 3/2."""
    whole, *parts = re.findall(r"[\d.]+(?:e[+-]?\d+)?", text.lower().replace(",", ""))
    value = Fraction(whole)
    if len(parts) == 2:
        value += Fraction(int(parts[0]), int(parts[1]))
    elif parts:
        decimals = len(whole.partition(".")[2])
        value += Fraction(int(parts[0]), (10 ** len(parts[0]) - 1) * 10**decimals)
        return number(value, "..")
    return number(value, "." if "." in text or "e-" in text.lower() else "")


def negative(node: Node) -> Node:
    """The node with a minus sign, which stands before a unit."""
    if node.op == "unit":
        return Node("unit", (negative(node.parts[0]),), node.name)
    return Node("negative", (node,))


def symbols(node: Node) -> frozenset[str]:
    """The names of the quantities in a formula that are no constants."""
    own = {node.name} if node.op == "symbol" and node.name not in ("\\pi", "e", "i") else ()
    return frozenset(own).union(*map(symbols, node.parts))


def spelt(node: Node, *, ordered: bool = True) -> str:
    """A tree as an unambiguous text; or one without the order of terms and factors."""
    parts = [spelt(part, ordered=ordered) for part in node.parts]
    if node.op in ("sum", "product") and not ordered:
        parts.sort()
    op = "quotient" if node.op == "divided" else node.op
    return f"{op}:{node.value if op == 'number' else node.name}" + (
        f"[{','.join(parts)}]" if parts else ""
    )


def parsed(found: tuple[Token, ...]) -> Node:
    """The tree of an answer's tokens; several values are a list."""
    parser = _Parser(found)
    node = parser.items()
    if parser.at != len(found):
        raise Unreadable
    return node


class _Parser:
    """Recursive descent over tokens."""

    def __init__(self, found: tuple[Token, ...]) -> None:
        self.found, self.at, self.depth, self.bars = found, 0, 0, 0

    def ahead(self, count: int = 0) -> Token:
        at = self.at + count
        return self.found[at] if 0 <= at < len(self.found) else Token("", "")

    @property
    def text(self) -> str:
        """The text of the next token; that of a word reads as none, except for separators."""
        token = self.ahead()
        return token.text if token.kind == "mark" or token.text in _SEPARATORS else ""

    @property
    def kind(self) -> str:
        return self.ahead().kind

    def next(self) -> Token:
        self.at += 1
        return self.ahead(-1)

    def take(self, *texts: str) -> str:
        """The text of the next token, which is read if it is one of these; else ""."""
        return self.next().text if self.text in texts and self.text else ""

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise Unreadable

    def deeper(self, read: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable
        node = read()
        self.depth -= 1
        return node

    def items(self) -> Node:
        """One item, or several as a list named "or" or ","."""
        items, name = [self.item()], ","
        while self.text in _SEPARATORS:
            while mark := self.take(*_SEPARATORS):
                name = "or" if mark == "or" else name
            items.append(self.item())
        return items[0] if len(items) == 1 else Node("list", tuple(items), name)

    def item(self) -> Node:
        parts, names = [self.side()], []
        while mark := self.take(*_RELATIONS):
            names.append(_RELATIONS[mark])
            parts.append(self.side())
        return Node("relation", tuple(parts), " ".join(names)) if names else parts[0]

    def side(self) -> Node:
        """A name in words, or a value with its unit; or a union of such."""
        parts = [self.quantity()]
        while self.take(r"\cup"):
            parts.append(self.quantity())
        return Node("union", tuple(parts)) if len(parts) > 1 else parts[0]

    def quantity(self) -> Node:
        if self.kind == "word":
            return Node("symbol", (), _checked(self.phrase(), _TEXT))
        sign = bool(self.take("-"))
        currency = self.take(*CURRENCIES)
        self.at -= sign and not currency
        node = self.deeper(self.sum)
        names = list(self.phrase()) + [currency] * bool(currency)
        if names:
            _checked(names, _UNIT)
            node = Node("unit", (node,), unit_name(names))
        return negative(node) if sign and currency else node

    def phrase(self) -> Iterator[str]:
        """The words at the end of an item, such as a unit; none if it begins with no word."""
        closes = self.text == "(" and self.ahead(1).kind == "word" and bool(self.take("("))
        if self.kind != "word" and self.text not in (*CURRENCIES, "%", r"\%"):
            return
        while self.kind and self.text not in (*_SEPARATORS, *_RELATIONS, ")", "]", r"\}", "}", "&"):
            yield self.next().text
        if closes:
            self.expect(")")

    def sum(self) -> Node:
        parts = [] if self.text in (r"\pm", r"\mp", "+") else [self.term()]
        while mark := self.take("+", "-", r"\pm", r"\mp"):
            term = self.term()
            if mark in ("+", "-"):
                parts.append(term if mark == "+" else negative(term))
            else:
                either = (*parts, term if mark == r"\pm" else negative(term))
                parts = [Node("either", either)]
        return parts[0] if len(parts) == 1 else Node("sum", tuple(parts))

    def term(self) -> Node:
        if self.take("-"):
            return negative(self.deeper(self.term))
        node = self.factor()
        while True:
            if self.take(r"\times"):
                node = _product(node, self.signed())
            elif mark := self.take("/", r"\div"):
                node = Node("quotient" if mark == "/" else "divided", (node, self.signed()))
            elif self.starts():
                node = _product(node, self.factor())
            else:
                return node

    def signed(self) -> Node:
        return negative(self.deeper(self.signed)) if self.take("-") else self.factor()

    def starts(self) -> bool:
        """Whether another factor begins here, without a sign of multiplication."""
        if self.kind == "number" and self.ahead(-1).kind == "number":
            raise Unreadable  # 1 2 is not 12, nor 2
        if self.text == "(":
            return self.ahead(1).kind != "word"  # the name of what is counted
        return (
            self.kind in ("number", "symbol")
            or self.text in (r"\{", "[", "{", r"\frac", r"\sqrt", r"\binom")
            or (self.text == "|" and not self.bars)
            or self.text in _NAMES
            or self.text[1:] in FUNCTIONS
        )

    def factor(self) -> Node:
        node = self.deeper(self.atom)
        while mark := self.take("^", "'", "!", "_"):
            if mark == "!":
                node = Node("factorial", (node,))
            elif mark == "'" or (mark == "^" and self.take("'", r"\prime")):
                node = self.applied(f"{_name(node)}'")
            elif mark == "_":
                node = _indexed(node, self.argument())
            elif not self.take(r"\circ"):
                node = _power(node, self.argument())
            else:
                scale = f" {self.next().text}" if self.ahead().text in ("C", "F") else ""
                node = Node("unit", (node,), f"degree{scale}")
        return node

    def argument(self) -> Node:
        """What stands behind ^, _ or a command: a group in braces, or the next atom."""
        return negative(self.deeper(self.atom)) if self.take("-") else self.deeper(self.atom)

    def atom(self) -> Node:
        kind, text = self.next()
        if kind == "number":
            return literal(text)
        if kind == "symbol":
            return self.applied(text) if text in _APPLIED else Node("symbol", (), text)
        if kind != "mark":
            raise Unreadable
        if text in _CLOSING:
            return self.brackets(text)
        if text == "|" and not self.bars:
            self.bars += 1
            inside = self.deeper(self.sum)
            self.expect("|")
            self.bars -= 1
            return Node("function", (inside,), "abs")
        if text.startswith("begin:"):
            return self.matrix(text.removeprefix("begin:"))
        return self.command(text)

    def applied(self, name: str) -> Node:
        """A quantity, or a function's value such as f(3), which is a quantity of its own."""
        arguments = spelt(self.deeper(self.atom)) if self.text == "(" else ""
        return Node("symbol", (), name + arguments)

    def brackets(self, opening: str) -> Node:
        bars, self.bars = self.bars, 0
        inside = self.deeper(self.items)
        self.bars = bars
        closing = self.next().text
        if closing != _CLOSING[opening] and {opening, closing} not in ({"(", "]"}, {"[", ")"}):
            raise Unreadable
        parts = inside.parts if inside.op == "list" else (inside,)
        if opening == r"\{":
            return Node("set", parts)
        if opening == "{" or (len(parts) == 1 and closing == _CLOSING[opening]):
            return inside
        return Node("tuple", parts, "()" if opening == r"\langle" else opening + closing)

    def matrix(self, name: str) -> Node:
        if name not in ("pmatrix", "bmatrix", "matrix", "array"):
            raise Unreadable
        rows: list[Node] = []
        row: list[Node] = []
        while True:
            row.append(self.deeper(self.side))
            if self.take("&"):
                continue
            rows.append(Node("row", tuple(row)))
            row = []
            ended = not self.take(r"\\")
            if self.take(f"end:{name}"):
                return Node("matrix", tuple(rows))
            if ended:
                raise Unreadable

    def command(self, text: str) -> Node:
        if text in (r"\frac", r"\binom"):
            top = self.argument()
            return Node("quotient" if text == r"\frac" else "binomial", (top, self.argument()))
        if text == r"\sqrt":
            index = number(2)
            if self.take("["):
                index = self.deeper(self.sum)
                self.expect("]")
            return Node("root", (self.argument(), index))
        if text[1:] in FUNCTIONS:
            return self.function(text[1:])
        if text in _NAMES:
            return Node("symbol", (), text)
        raise Unreadable

    def function(self, name: str) -> Node:
        base = (self.argument(),) if self.take("_") else ()
        power = self.argument() if self.take("^") else None
        if self.text in ("(", "{"):
            inside = self.deeper(self.atom)
        else:
            inside = self.factor()
            while self.starts() and self.text[1:] not in FUNCTIONS:
                inside = _product(inside, self.factor())
        if power == negative(number(1)):
            return Node("function", (inside, *base), f"arc{name}")
        node = Node("function", (inside, *base), name)
        if name == "exp":
            node = _power(Node("symbol", (), "e"), inside)
        return node if power is None else _power(node, power)


def _checked(names: Iterable[str], pattern: re.Pattern[str]) -> str:
    """The words of a name, which are no formula."""
    name = " ".join(names)
    if not pattern.fullmatch(name):
        raise Unreadable
    return name


def _name(node: Node) -> str:
    if node.op != "symbol":
        raise Unreadable
    return node.name


def _indexed(node: Node, index: Node) -> Node:
    if node.op == "number":  # in another base
        return Node("unit", (node,), f"_{index.value}")
    return Node("symbol", (), f"{_name(node)}_{spelt(index)}")


def _power(base: Node, exponent: Node) -> Node:
    """A power; 16^{1/3} is a root."""
    if exponent.op == "quotient" and exponent.parts[0] == number(1):
        return Node("root", (base, exponent.parts[1]))
    return Node("power", (base, exponent))


def _product(left: Node, right: Node) -> Node:
    sides = (side.parts if side.op == "product" else (side,) for side in (left, right))
    return Node("product", tuple(factor for side in sides for factor in side))
