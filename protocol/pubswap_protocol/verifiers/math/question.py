"""A question's own formulas and numbers: to repeat them is no answer."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pubswap_protocol.verifiers.math.form import is_whole
from pubswap_protocol.verifiers.math.grammar import Node, number, parsed, spelt
from pubswap_protocol.verifiers.math.tokens import MAX_TOKENS, Token, Unreadable, tokens
from pubswap_protocol.verifiers.math.units import split_scale, words

MAX_CHARACTERS = 8000

_BORDERS = ("$", ".", ":", "?", r"\(", r"\)", r"\[", r"\]")
_NAMED = words("two three four five six seven eight nine ten eleven twelve")


class Question:
    """A prompt with the formulas and numbers in it."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt[-MAX_CHARACTERS:]
        try:
            found = tokens(self.prompt, MAX_CHARACTERS)
        except Unreadable:
            found = ()
        self.formulas = {key for formula in _formulas(found) for key in _keys(formula)}
        self.numbers = {number(_NAMED.index(t.text) + 2) for t in found if t.text in _NAMED}
        self.numbers.update(*(_read([token]) for token in found if token.kind == "number"))

    def repeated(self, gold: Node, answer: Node) -> bool:
        """Whether an answer is a formula of the question, and the gold is not.

        So is a division of the question's numbers, unless the gold is written so.
        """
        gold, answer = _core(gold), _core(answer)
        if is_whole(answer) or spelt(answer) == spelt(gold):
            return False
        large = "divi" in self.prompt.lower() or any(part.value >= 10 for part in answer.parts)
        if answer.op == "quotient" and large and self.numbers.issuperset(answer.parts):
            return True
        return any(
            mine in self.formulas and its not in self.formulas
            for mine, its in zip(_keys(answer), _keys(gold), strict=True)
        )


def _keys(formula: Node) -> list[tuple[bool, str]]:
    """The formula as it is written, and in any order."""
    return [(ordered, spelt(formula, ordered=ordered)) for ordered in (True, False)]


def _core(node: Node) -> Node:
    """A value without its unit, unless that scales it."""
    return node.parts[0] if node.op == "unit" and not split_scale(node.name)[0] else node


def _formulas(found: Sequence[Token]) -> Iterator[Node]:
    """What can be read between words and borders."""
    ends = [at for at, token in enumerate(found) if token.kind == "word" or token.text in _BORDERS]
    for start, end in pairwise([-1, *ends, len(found)]):
        piece = found[start + 1 : end]
        yield from _read(piece[:-1] if piece[-1:] == (Token("mark", ","),) else piece)


def _read(found: Sequence[Token]) -> tuple[Node, ...]:
    """The formula that tokens are, and its parts; none if they are no formula."""
    if len(found) > MAX_TOKENS:
        return ()
    try:
        formula = parsed(tuple(found))
    except (Unreadable, RecursionError, ArithmeticError, ValueError):
        return ()
    return (formula, *(formula.parts if formula.op in ("list", "relation") else ()))
