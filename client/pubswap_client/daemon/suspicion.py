"""The warning about right answers that are no answers: a verifier that pays them teaches them."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pubswap_protocol.bounds import plain
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import (
    first_of,
    last_boxed,
    last_line,
    opened,
    stated,
    tagged,
)
from pubswap_protocol.verifiers.registry import Given, judge_of

MIN_RIGHT = 20
SHARE = 0.9
_MAX_ANSWER = 300  # characters; the patterns below take quadratic time

_SIGNS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DOT OPERATOR}": "*",
        "\N{DIVISION SIGN}": r"\div ",
    }
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|[^\s\w$(){}\[\]\\,.;:?!]")
_NUMBER = re.compile(r"[$\\]*\s*[+-]?\d[\d,]*(?:\.\d+)?\s*[%$\\]*")
_SCIENTIFIC = re.compile(
    r"(?:\d[\d.,]*\s*)?(?:\\times|\\cdot|[*x])?\s*\b10\s*(?:\^|\*\*)\s*\{?\s*[+-]?\d+\s*\}?"
)
_OPERATION = re.compile(r"\d\s*[)}\]]*\s*(?:\*\*|[-+*^]|\\(?:times|cdot|div)\b)\s*[({\[\\-]*\s*\d")


@dataclass(frozen=True, slots=True)
class _Answer:
    """The text of a right answer, and those of its question and its gold; each also as tokens."""

    text: str
    tokens: str
    gold: str
    gold_tokens: str
    question_tokens: str


def suspicion(right: Sequence[tuple[str, Problem]], verifier: Given) -> str | None:
    """What nearly all right answers have in common, if answers should not; None if nothing.

    `right` are the right responses, each with its problem. They are looked at together, then by
    topic, if there are at least MIN_RIGHT. Answers that are right because their text is the gold's
    are not suspicious, so those of `exact` and `choice` are left out.
    """
    by_topic: dict[str, list[_Answer]] = defaultdict(list)
    for response, problem in right:
        if not judge_of(problem, verifier).quick:
            by_topic[problem.topic].append(_answer(response, problem))
    everything = [answer for answers in by_topic.values() for answer in answers]
    if found := _in_common(everything):
        return f"{found[0]} of {len(everything)} right answers {found[1]}"
    for topic, answers in sorted(by_topic.items()):
        if found := _in_common(answers):
            where = f"to the topic {plain(topic)[:60]}"
            return f"{found[0]} of {len(answers)} right answers {where} {found[1]}"
    return None


def _in_common(answers: Sequence[_Answer]) -> tuple[int, str] | None:
    """For how many answers a suspicion holds, and which."""
    if len(answers) < MIN_RIGHT:
        return None
    text = Counter(answer.tokens for answer in answers).most_common(1)[0][0]
    alike = [a for a in answers if a.tokens == text != a.gold_tokens]
    kinds = {
        "repeat the question or leave a calculation to be done": sum(map(_unfinished, answers)),
        "are the same text": len(alike) if len({a.gold_tokens for a in alike}) > 1 else 0,
    }
    return next(((n, what) for what, n in kinds.items() if n >= SHARE * len(answers)), None)


def _unfinished(answer: _Answer) -> bool:
    """Whether an answer is a part of the question, or a calculation where the gold is a number.

    Not if it has the gold or is a part of it, or if the gold is in the question, too.
    """
    if _within(answer.tokens, answer.gold_tokens):
        return False
    if _NUMBER.fullmatch(answer.gold) and not _within(answer.gold_tokens, answer.tokens):
        last = answer.text.rpartition("=")[2]
        if _OPERATION.search(_SCIENTIFIC.sub("1", last)):
            return True
    several = sum(token[0].isalnum() for token in answer.tokens.split()) > 1
    echo = several and _within(answer.tokens, answer.question_tokens)
    return echo and not _within(answer.gold_tokens, answer.question_tokens)


def _within(part: str, whole: str) -> bool:
    return f" {part} " in f" {whole} "


def _answer(response: str, problem: Problem) -> _Answer:
    said = opened(first_of(response, last_boxed, tagged, stated, last_line) or "")
    text, gold = _plain(said)[:_MAX_ANSWER], _plain(opened(problem.answer))[:_MAX_ANSWER]
    return _Answer(text, _tokens(text), gold, _tokens(gold), _tokens(_plain(problem.question)))


def _plain(text: str) -> str:
    """One line, in which equal signs are the same characters."""
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    return _FRACTION.sub(r"\1/\2", re.sub(r"(?<=\d),(?=\d{3})", "", " ".join(text.split())))


def _tokens(text: str) -> str:
    """Numbers, words and signs, without brackets and punctuation, separated by spaces."""
    return " ".join(_TOKEN.findall(text.casefold()))
