"""`choice`: a letter, as MedQA and MedMCQA ask for."""

import re

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import extract_answer

_WRAPPED = re.compile(r"\(([A-J])\)|\\boxed\{\\?(?:text\{)?([A-J])\}?|\b([A-J])\)")
_ALONE = re.compile(r"(?<![A-Za-z0-9'])([A-J])(?![A-Za-z0-9'])")
_STATED = re.compile(r"answer\s+is:?\s*\(?([A-J])\b", re.IGNORECASE)


def score_choice(response: str, problem: Problem) -> float:
    """1.0 if the response ends in exactly one letter, and it is the problem's answer."""
    return float(chosen_letter(response) == problem.answer.strip().strip("().").upper())


def chosen_letter(response: str) -> str | None:
    """The letter A-J that a response settles on; None if it names none or several."""
    if stated := _STATED.findall(response):
        return str(stated[-1]).upper()
    answer = extract_answer(response)
    if re.fullmatch(r"\(?[a-j]\)?\.?", answer):
        return answer.strip("().").upper()
    leading = re.match(r"\(?([A-J])[).:]", answer)
    if leading:
        return leading.group(1)
    wrapped = {letter for match in _WRAPPED.findall(answer) for letter in match if letter}
    letters = wrapped or set(_ALONE.findall(answer))
    return letters.pop() if len(letters) == 1 else None
