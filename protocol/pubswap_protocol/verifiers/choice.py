"""`choice`: one letter, as in MedQA and MedMCQA."""

import re

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import answer_line, first_of, last_boxed, last_line, tagged

# These patterns run without a time limit, so all their repetitions are bounded or possessive.
_STATED = re.compile(r"(?:answer|option|choice)\s{1,9}is\b:?", re.IGNORECASE)
_MARKUP = re.compile(
    r"\\(?:[A-Za-z]++|[()\[\]])|[*_`#${}\[\]\"\u2018\u201c-\u201f\u2705\u2713\u2714\ufe0f]"
)
# A letter alone or followed by its option: "C", "(C)", "C. Aspirin", "C (Aspirin)",
# "C - Aspirin" with any dash; "The final answer is" may precede it.
_LETTER = re.compile(
    r"\s*+(?i:(?:[a-z]{2,12},?\s++){0,4}(?:answer|option|choice)\s++is\b:?|option|choice)?"
    r"\s*+\(?([A-J])(?:\)|(?![\w'])(?!\s++[^\s(:\u2013\u2014-]))"
)
_ANOTHER = re.compile(
    r"[\s.()]*+(?:[,;/&]|\b(?:and|or)\b)[\s(]*+(?:(?:and|or)\s++)?\(?[A-J](?![\w'])"
    r"|[\s.()]*+[\u2013\u2014-]\s*+\(?[A-J]\)?\s*+(?:[.,;]|$)"
)


def score_choice(response: str, problem: Problem) -> float:
    """1.0 if the response ends in exactly one letter, and it is the problem's answer."""
    return float(chosen_letter(response) == problem.answer.strip().strip("().").upper())


def chosen_letter(response: str) -> str | None:
    """The capital letter A-J that a response settles on; None if it names none or several.

    The last line with "Answer:" decides. Without one, the last <answer>...</answer> decides, then
    the last box, "answer is" with a letter, or line.
    """
    answer = first_of(response, answer_line, tagged, last_boxed, _stated, last_line)
    return None if answer is None else leading_letter(answer)


def _stated(text: str) -> str | None:
    # Each rest ends at the next statement: "The closest answer is 81%. The answer is (F)."
    rests = (rest.partition("\n")[0] for rest in reversed(_STATED.split(text)[1:]))
    return next((rest for rest in rests if leading_letter(rest)), None)


def leading_letter(answer: str) -> str | None:
    """The option that an answer begins with, unless it names another one too."""
    plain = _MARKUP.sub("", answer).strip()
    letter = _LETTER.match(plain)
    return letter[1] if letter and not _ANOTHER.match(plain, letter.end()) else None
