"""The paper's data sets on the hub: where they are, and how to read a row."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pubswap_client.data.convert.table import Row
from pubswap_client.data.examples import Unusable
from pubswap_client.data.spec import SourceName
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import last_boxed

Cells = Mapping[str, Any]
_LETTERS = "ABCD"
_BOXED = "Let's think step by step and output the final answer within \\boxed{}."
_LETTER = 'Think step by step. End with a line "Answer: " and the letter of the one right option.'


@dataclass(frozen=True)
class Example:
    """A usable row. Rows with equal `identity` are the same question, wherever they are."""

    identity: str
    question: str
    answer: str
    topic: str


@dataclass(frozen=True)
class HubSet:
    """A data set on the hub: the columns that `read` needs, and how to ask its questions."""

    name: str
    hub: str
    columns: tuple[str, ...]
    read: Callable[[Cells], Example]
    verifier: str = "math"
    instruction: str = _BOXED

    def problem(self, row: Row) -> Problem:
        """The problem of a row; its id depends on the question alone, not on files or their order.

        Raises Unusable.
        """
        if row.fault:
            raise Unusable(row.fault)
        example = self.read(row.cells)
        normal = " ".join(example.identity.split())
        digest = hashlib.sha256(normal.encode()).hexdigest()[:16]
        return Problem(
            id=f"{self.name}-{digest}",
            prompt=f"{example.question}\n\n{self.instruction}",
            answer=example.answer,
            topic=example.topic,
            verifier=self.verifier,
        )


def _math(row: Cells) -> Example:
    question = text_of(row, "problem")
    answer = (last_boxed(text_of(row, "solution")) or "").strip()
    if not answer:
        raise Unusable("solution: no \\boxed{...} with an answer")
    return Example(question, question, answer, text_of(row, "type"))


def _deepmath(row: Cells) -> Example:
    question = text_of(row, "question")
    levels = [level.strip() for level in text_of(row, "topic").split("->")]
    # Every topic is below "Mathematics", which says nothing.
    levels = levels[1:] if levels[0] == "Mathematics" and len(levels) > 1 else levels
    topic = " > ".join(levels)
    return Example(question, question, text_of(row, "final_answer"), topic)


def _medqa(row: Cells) -> Example:
    question, options = text_of(row, "question"), row.get("options")
    if not isinstance(options, Mapping):
        raise Unusable('options: not a table such as {"A": ..., "B": ...}')
    texts = {letter: text_of(options, letter) for letter in options if options[letter] is not None}
    letter = text_of(row, "answer_idx")
    if letter not in texts:
        raise Unusable("answer_idx: none of the options")
    # MedQA names no subjects, only the examination that a question is for.
    return _choice(question, texts, letter, f"USMLE {text_of(row, 'meta_info')}")


def _medmcqa(row: Cells) -> Example:
    question = text_of(row, "question")
    place: Any = row.get("cop")
    if place == -1:
        raise Unusable("cop: no answer is given (the hub's test set)", fault=False)
    # The authors' own files count from 1.
    if not isinstance(place, int) or place not in range(len(_LETTERS)):
        raise Unusable("cop: not 0 to 3, as in the hub's files")
    texts = {letter: text_of(row, f"op{letter.lower()}") for letter in _LETTERS}
    return _choice(question, texts, _LETTERS[place], text_of(row, "subject_name"))


def _choice(question: str, options: Mapping[str, str], letter: str, topic: str) -> Example:
    # A question stays the same if its options are in another order.
    identity = "\n".join([question, *sorted(options.values())]).casefold()
    listed = "\n".join(f"{letter}. {text}" for letter, text in sorted(options.items()))
    return Example(identity, f"{question}\n\n{listed}", letter, topic)


def text_of(row: Cells, column: str) -> str:
    """A row's text; raises Unusable if there is none."""
    value = row.get(column)
    if not isinstance(value, str):
        raise Unusable(f"{column}: {'empty' if value is None else 'not a text'}")
    if not value.strip():
        raise Unusable(f"{column}: empty")
    return value.strip()


_MATH = ("problem", "solution", "type")
_DEEPMATH = ("question", "final_answer", "topic")
_MEDQA = ("question", "options", "answer_idx", "meta_info")
_MEDMCQA = ("question", "opa", "opb", "opc", "opd", "cop", "subject_name")
HUB_SETS: Mapping[SourceName, tuple[HubSet, ...]] = {
    "math": (HubSet("math", "EleutherAI/hendrycks_math", _MATH, _math),),
    "deepmath": (HubSet("deepmath", "zwhe99/DeepMath-103K", _DEEPMATH, _deepmath),),
    "medical": (
        HubSet("medqa", "GBaker/MedQA-USMLE-4-options", _MEDQA, _medqa, "choice", _LETTER),
        HubSet("medmcqa", "openlifescienceai/medmcqa", _MEDMCQA, _medmcqa, "choice", _LETTER),
    ),
}
