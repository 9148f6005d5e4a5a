"""`choice`: one letter, as in MedQA and MedMCQA."""

import re
import unicodedata

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.extract import answer_line, first_of, last_boxed, last_line, tagged
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier

# These patterns run without a time limit, so all their repetitions are bounded or possessive.
_MARKUP = re.compile(
    r"\\(?:[A-Za-z]{2,}+|[()\[\]])|[*_`#${}\[\]\"\u2018\u201c-\u201f\u2705\u2713\u2714\ufe0f]"
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_IS = r"(?:answer|option|choice|letter)\s{1,9}(?:is|would\sbe|must\sbe|should\sbe)\b:?"
_STATED = re.compile(
    rf"{_IS}|\bI(?:\s(?:would|will)|['\u2019](?:d|ll))?"
    r"\s(?:answer|say|pick|choose|select|go\swith)\b:?",
    re.IGNORECASE,
)
# "The final answer is, therefore," may precede the letter. Behind it: nothing, its option, a
# reason, or "is correct"; anything else names no letter ("A bacterium") or more than one ("B|C").
_NAMED = re.compile(
    rf"\s*+(?i:(?:[a-z]{{2,12}},?\s++){{0,4}}{_IS})?\s*+,?+\s*+"
    r"(?i:(?:\.{2,9}|(?:therefore|thus|hence|then|clearly|indeed|definitely|(?:most\s)?likely"
    r"|probably|that|it\sis|the|letter|option|choice)\b,?+)\s*+){0,3}"
    r"\(?(?P<letter>[A-J])(?![\w'])(?P<settled>\)|(?=\s*+(?:$|[.:;!,(\u2013\u2014-]|\u2019(?!\w)"
    r"|(?i:because|since|as|due\sto|given|which|rather\sthan|instead\sof|(?:and\s|but\s)?not)\b"
    r"|is\s(?:[a-z]{4,10}ly\s|indeed\s)?(?:the\s|my\s)?(?:correct|right|best|answer)\b)))?"
)
_LETTERS = r"\(?[A-J]\)?(?:(?:\s*+,|\s++(?:and|n?or))++\s++\(?[A-J]\b\)?){0,8}+"
# Capital letters that name no further option: "not D", "A and B are wrong", "I think", and the
# article that the text of an option or a sentence begins with.
_HARMLESS = re.compile(
    rf"\b(?:not|nor|than)\s(?:option\s)?{_LETTERS}(?![\w'])"
    rf"|(?<![\w'-]){_LETTERS}\s(?:is|are)\s(?:wrong|incorrect|false|not|excluded|unlikely)\b"
    r"|\bI(?:['\u2019]|\s(?!is\b|if\b|or\b|and\b|as\b)[a-z])"
    r"|[.:(\u2013\u2014-]\s*+A\s(?!is\b|are\b|was\b|may\b|might\b|could\b|can\b|would\b|if\b|or\b"
    r"|and\b|as\b|too\b|also\b|when\b|unless\b|because\b)[a-z]"
)
SEVERAL = re.compile(r"\(?([A-J])\)?(?:[\s,;/&]*(?:and\s|or\s)?\s*\(?([A-J])\)?)+\.?")
_SENTENCE_END = re.compile(r"(?<=[a-z\d)]{2})[.!?](?=\s)")
_ANOTHER = re.compile(r"(?<![\w'])[A-J](?!-?\w|')")
# Letters that are options in an explanation, too: a label, or one that is given as well.
_LABEL = re.compile(r"[.!?]\s++\(?([A-J])(?:[.:)?!]|$)")
_OR = re.compile(
    r"\b(?:or|and|also|but|no|wait|sorry|actually|maybe|perhaps|possibly|alternatively|either)\b,?"
    r"\s++(?:it\sis\s|option\s)?\(?([A-J])(?:[.:)?!]|$)"
    r"|\b(?:or|maybe|perhaps|possibly|alternatively)\b,?\s++(?:it\sis\s|option\s)?\(?((?-i:[A-J]))\b",
    re.IGNORECASE,
)
_OPTION = re.compile(r"^[ \t]{0,9}\(?([A-J])[.):][ \t]{1,9}(\S.*)$", re.MULTILINE)


@VERIFIERS.register
class MultipleChoice(Verifier):
    """Correct if the response ends in exactly one letter, the problem's answer."""

    name = "choice"
    quick = True

    def score(self, response: str, problem: Problem) -> float:
        return float(chosen_letter(response, problem.question) == letter_of(problem.answer))

    def right_response(self, problem: Problem) -> str:
        letter = letter_of(problem.answer)
        return f"The answer is a hard one to see.\n**Answer: ({letter})**"

    def fault(self, problem: Problem) -> str | None:
        if re.fullmatch("[A-J]", letter_of(problem.answer)):
            return None
        several = SEVERAL.fullmatch(problem.answer.strip())
        return "it names several letters, and choice rewards one" if several else "it is no letter"


def letter_of(answer: str) -> str:
    """The letter of a reference answer such as "B", "(b)" or "B."."""
    return answer.strip().strip("().").upper()


def chosen_letter(response: str, prompt: str = "") -> str | None:
    """The capital letter A-J that a response settles on; None if it names none or several.

    The last line with "Answer:" decides. Without one, the last <answer>...</answer> decides, then
    the last box, "answer is" with a letter, or line. Where that begins with no letter, a statement
    behind it decides, such as "The answer is (D)." behind a box with a number. The options that a
    `prompt` lists may name letters themselves.
    """
    text = _readable(response)
    answer = first_of(text, answer_line, tagged, last_boxed, _stated, last_line)
    if answer is not None and not _named(answer):
        answer = _stated(text[text.rfind(answer) :])
    return None if answer is None else _only_letter(answer, prompt)


def _readable(text: str) -> str:
    """The text with full-width signs as ordinary ones, and without invisible ones."""
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))


def _stated(text: str) -> str | None:
    # Each rest ends at the next statement: "The closest answer is 81%. The answer is (F)."
    rests = (rest.strip().partition("\n")[0] for rest in reversed(_STATED.split(text)[1:]))
    return next((rest for rest in rests if _named(rest)), None)


def _named(answer: str) -> re.Match[str] | None:
    return _NAMED.match(_MARKUP.sub("", answer).strip())


def _only_letter(answer: str, prompt: str) -> str | None:
    """The option that an answer begins with, unless it names another one too."""
    named = _named(answer)
    if not named or named["settled"] is None:
        return None
    rest = named.string[named.end() :]
    # The option's own text may name letters: "C. Both A and B".
    option = _MARKUP.sub("", dict(_OPTION.findall(prompt)).get(named["letter"], "")).strip()
    text = rest.lstrip(" .:)(\u2013\u2014-")
    if option and text.casefold().startswith(option.casefold()):
        rest = text[len(option) :]
    return None if _others(named["letter"], _HARMLESS.sub(" ", rest)) else named["letter"]


def _others(letter: str, rest: str) -> bool:
    found = _ANOTHER.findall(_SENTENCE_END.split(rest, 1)[0]) + _LABEL.findall(rest)
    found += [first or second for first, second in _OR.findall(rest)]
    return any(other.upper() != letter for other in found)
