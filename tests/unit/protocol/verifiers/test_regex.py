"""`regex`: patterns of linear time."""

import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pubswap_protocol.errors import InvalidProblems, InvalidSettings, first_fault
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import VerifierPool, check_usable, verifier_version
from pubswap_protocol.verifiers.declared import regex
from pubswap_protocol.verifiers.registry import VERIFIERS, score
from pubswap_protocol.verifiers.verifier import Verifier

LAYOUT = r"(?s)<think>.+</think>\s*<answer>[^<]+</answer>"


def verifier(pattern: str, **parameters: object) -> Verifier:
    return VERIFIERS.read({"name": "regex", "pattern": pattern, **parameters})


def problem(answer: str = "AB-12", **metadata: object) -> Problem:
    return Problem(id="1", prompt="?", answer=answer, metadata=metadata)


@pytest.mark.parametrize(
    ("pattern", "response", "right"),
    [
        (r"[A-Z]{2}-\d{2}", "Answer: AB-12", 1),
        (r"[A-Z]{2}-\d{2}", "AB-12\nAnswer: CD-34 ", 1),
        (r"[A-Z]{2}-\d{2}", "Answer: AB-123", 0),
        (r"[A-Z]{2}-\d{2}", "Answer: xAB-12", 0),
        (r"[A-Z]{2}-\d{2}", "Answer: AB-12 or CD-34", 0),
        (r"[A-Z]{2}-\d{2}", "<answer>AB-12\nCD-34</answer>", 0),
        (r"[A-Z]{2}-\d{2}", "<think>AB-12", 0),
        (r"fees|cards", "fees|cards", 0),
        (r"fees|cards", "fees or cards", 0),
        (r"fees|cards", "Answer: cards", 1),
        (r"^fee$", "fee", 1),
        (r"(?i)GEBÜHR", "gebühr", 1),
        (r".", "é", 1),
        (r".", "\U0001f600", 1),
        (r".", "\ud800", 1),
        (r".*", "", 0),
        (r".*", " \n ", 0),
        (r"a?", "Answer:", 0),
        (r".*", "<answer>one\ntwo</answer>", 0),
        (r"(?s).*", "<answer>one\ntwo</answer>", 1),
        ("", "x", 0),
    ],
)
def test_the_whole_answer_must_match(pattern: str, response: str, right: float) -> None:
    """Not a part of it, and not a list of alternatives."""
    assert score(verifier(pattern), response, problem()) == right


def test_a_whole_response_may_be_matched() -> None:
    """For the form, with an example of it."""
    form = verifier(LAYOUT, whole=True, example="<think>Hm.</think>\n<answer>{answer}</answer>")
    assert score(form, " <think>So</think> <answer>4</answer>\n", problem("4")) == 1
    assert score(form, "<answer>4</answer>", problem("4")) == 0
    assert form.fault(problem("4")) is None
    told = verifier(LAYOUT, whole=True).fault(problem("4"))
    assert told == "the pattern does not match `example` with the answer '4'"


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        (r"(a)\1", "at character 4: RE2 cannot refer to a group"),
        (r"a\\\2", "at character 4: RE2 cannot refer to a group"),
        ("x(?=a)b", "at character 2: RE2 has no look-around"),
        ("(?<!a)b", "at character 1: RE2 has no look-around"),
        ("é(?>a)", "at character 2: RE2 has no atomic groups"),
        ("ab++", "at character 3: RE2 has no possessive repetition, and needs none: use +"),
        (r"ab\Z", r"at character 3: RE2 has no \Z"),
        ("(a)(b", "at character 4: missing )"),
        ("(a))b", "at character 4: unexpected )"),
        ("[a][a", "at character 4: missing ]"),
        ("a\\d\\", "at character 4: trailing \\"),
        ("*a", "at character 1: no argument for repetition operator *"),
        ("a{1001}", "at character 2: invalid repetition size {1001}"),
        (r"a\q", r"at character 2: invalid escape sequence \q"),
        ("[z-a]", "at character 2: invalid character class range z-a"),
        ("(?s).{1000}", "it is too large"),
        (r"\pL{900}", "it is too large"),
        ("(" * 1000, "missing )"),
        ("x" * 998 + r"\1", "RE2 cannot refer to a group"),
        ("a" * 1001, "String should have at most 1000 characters"),
    ],
)
def test_a_bad_pattern_is_refused_with_its_position(pattern: str, fault: str) -> None:
    """When the settings are read, in plain words."""
    with pytest.raises(ValidationError) as refused:
        verifier(pattern)
    assert first_fault(refused.value).startswith(f"pattern: {fault}")
    with pytest.raises(InvalidProblems, match="1: metadata: pattern: "):
        VERIFIERS.read("regex").on(problem(pattern=pattern))


@given(st.text("ab\\(){}[]?*+^$|.1=!<", max_size=12))
def test_any_pattern_is_read_or_refused(pattern: str) -> None:
    """What both take has the same matches as in Python."""
    try:
        judge = verifier(pattern)
    except ValidationError as error:
        assert first_fault(error).startswith("pattern: ")
        return
    for text in ("a", "ab", "aab", "1", "b=1"):
        try:
            expected = bool(pattern) and bool(re.fullmatch(pattern, text))
        except re.error:
            return
        assert score(judge, text, problem()) == expected


@pytest.mark.parametrize(
    ("pattern", "response"),
    [
        ("(a*)*b", "a" * 65_000),
        ("(x+x+)+y", "x" * 65_000),
        ("(a|a)*b", "a" * 65_000),
        (r"(\s*\S*)*$b", "a " * 32_000),
        ("(?s).*a.{500}b", "".join(random.Random(0).choices("ab", k=65_000))),
    ],
)
def test_what_would_backtrack_for_ever_is_linear(pattern: str, response: str) -> None:
    """The longest responses take a second or two at most."""
    began = time.process_time()
    score(verifier(pattern, whole=True), response, problem())
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [("", "there is no pattern"), ("x+", "the pattern does not match the answer 'AB-12'")],
)
def test_an_answer_that_cannot_be_right_is_told(pattern: str, fault: str) -> None:
    """It is an example of the pattern."""
    told = verifier(pattern).fault(problem())
    assert told and told.startswith(fault)


def test_a_problem_s_own_pattern_outranks_the_run_s() -> None:
    """And is scored in the pool's processes as here."""
    items = [(f"Answer: {text}", problem("4", pattern=r"\d")) for text in ("4", "x", "44")]
    with VerifierPool() as pool:
        assert not pool.at_once("regex", [problem()])
        assert pool.score_many(verifier("x"), items) == [1, 0, 0]
    assert [score(verifier("x"), *item) for item in items] == [1, 0, 0]


def test_without_the_library_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to get it; its version is part of the verifier's."""
    assert re.fullmatch(r"regex@\d+\+1\.\d[.\d]+", verifier_version("regex"))
    check_usable("regex")
    monkeypatch.setattr(regex, "find_spec", lambda name: None)
    with pytest.raises(ValidationError, match="pip install google-re2"):
        verifier("x")
    monkeypatch.setattr(regex.RegexMatch, "library", "google-re2-that-is-not-there")
    with pytest.raises(InvalidSettings, match="is not installed"):
        check_usable("regex")


@given(st.text(min_size=1, max_size=10), st.sampled_from([r"(?s).+", r"\d+", r"(?s)[^<]*"]))
def test_its_own_right_response_is_right_and_nothing_is_not(answer: str, pattern: str) -> None:
    """Whatever the answer is, unless it has said that it is faulty."""
    for judge in (verifier(pattern), verifier(f"(?s)<answer>({pattern})</answer>", whole=True)):
        item = problem(answer)
        if judge.fault(item) is None:
            assert judge.score(judge.right_response(item), item) == 1
        assert judge.score("", item) == 0
