"""`label`: one of a set, such as the category of a complaint."""

from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from pubswap_protocol.command_line.amounts import first_few
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.declared.text import bare, folded
from pubswap_protocol.verifiers.extract import extract_answer
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier

_LONGEST = 200
_MAX_CHARACTERS = 1 << 15  # of all labels, whose forms may be 18 times as long

LabelText = Annotated[str, Field(min_length=1, max_length=_LONGEST, strict=True)]
Synonyms = Annotated[tuple[LabelText, ...], Field(min_length=1, max_length=20, fail_fast=True)]
Texts = str | tuple[str, ...]


def _kind(label: object) -> str:
    return "synonyms" if isinstance(label, list | tuple) else "label"


def _distinct(labels: tuple[Texts, ...]) -> tuple[Texts, ...]:
    length = sum(len(text) for texts in map(_texts, labels) for text in texts)
    if length > _MAX_CHARACTERS:
        raise ValueError(
            f"the labels have {length:,} characters; at most {_MAX_CHARACTERS:,} may be"
        )
    numbers: dict[str, int] = {}
    for number, texts in enumerate(map(_texts, labels)):
        for text in texts:
            if not (form := folded(text)):
                raise ValueError(f"the label {text!r} is blank")
            if numbers.setdefault(form, number) != number:
                raise ValueError(f"{text!r} names two labels; leave it out of one of them")
    return labels


def _texts(label: Texts) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else label


Entry = Annotated[
    Annotated[LabelText, Tag("label")] | Annotated[Synonyms, Tag("synonyms")], Discriminator(_kind)
]
Labels = Annotated[
    tuple[Entry, ...], Field(max_length=500, fail_fast=True), AfterValidator(_distinct)
]


@VERIFIERS.register
class OneLabel(Verifier):
    """Correct if the answer is the problem's label or a synonym of it, and nothing else.

    An answer that names two labels is not a label, so hedging gains nothing.
    """

    name = "label"
    quick = True
    by_problem = frozenset({"labels"})

    labels: Labels = Field(
        default=(),
        description="All labels. One with synonyms is a list: ['fees', ['cards', 'card payment']].",
    )

    def score(self, response: str, problem: Problem) -> float:
        label = self._label(extract_answer(response))
        return float(label is not None and label == self._label(problem.answer))

    def fault(self, problem: Problem) -> str | None:
        if not self.labels:
            return "there are no labels; list them in the run's verifier or in metadata.labels"
        if self._label(problem.answer) is None:
            known = [texts[0] for texts in map(_texts, self.labels)]
            answer = problem.answer[:_LONGEST]
            return f"the answer {answer!r} is none of the labels: {first_few(known)}"
        if not self.score(self.right_response(problem), problem):
            return "the answer cannot be told from a response's layout; give it a plainer synonym"
        return None

    def _label(self, answer: str) -> int | None:
        """The number of the label that an answer is, if it is one."""
        if len(answer) > 2 * _LONGEST:
            return None
        numbers = _numbers(self.labels)
        whole = numbers.get(folded(answer))
        return numbers.get(folded(bare(answer))) if whole is None else whole


@lru_cache(maxsize=16)
def _numbers(labels: tuple[Texts, ...]) -> dict[str, int]:
    """The labels' numbers by their texts' forms."""
    return {folded(text): n for n, texts in enumerate(map(_texts, labels)) for text in texts}
