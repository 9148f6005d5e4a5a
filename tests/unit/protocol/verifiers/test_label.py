"""`label`: one of a set, with synonyms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pubswap_protocol.errors import InvalidProblems, first_fault
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.registry import VERIFIERS, score
from pubswap_protocol.verifiers.verifier import Verifier

LABELS = ["fees", ["cards", "card payment", "Karten"], "late_fee", "C++", "(none)", "gebühr"]


def verifier(labels: object = LABELS) -> Verifier:
    return VERIFIERS.read({"name": "label", "labels": labels})


def problem(answer: str, **metadata: object) -> Problem:
    return Problem(id="1", prompt="Which of fees, cards?", answer=answer, metadata=metadata)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Answer: fees", "fees"),
        ("I see cards, no: \n**Fees.**", "fees"),
        ("<answer>FEES</answer>", "fees"),
        (r"So \boxed{\text{fees}}", "fees"),
        ("Answer: `late_fee`", "late_fee"),
        ("Answer: __late_fee__", "late_fee"),
        ("Answer: Card \u00a0 Payment", "cards"),
        ("Answer: \uff23\uff41\uff52\uff44\uff53", "cards"),
        ("Answer: \u201ekarten\u201c", "cards"),
        ("Answer: cards", "Karten"),
        ("Answer: c++", "C++"),
        ("Answer: (None).", "(none)"),
        ("Answer: GEBU\u0308HR", "gebühr"),
        ("<think>fees</think>cards", "cards"),
        ("Answer: fees\nAnswer: cards", "cards"),
    ],
)
def test_a_label_or_its_synonym_is_right(response: str, answer: str) -> None:
    """Case, white space, Unicode form and layout do not count."""
    assert score(verifier(), response, problem(answer)) == 1


@pytest.mark.parametrize(
    "response",
    [
        *("", " ", "Answer:", "Answer: ,", "Answer: fe es", "Answer: feess", "Answer: fees1"),
        *("fees or cards", "fees, cards", "fees/cards", "fees and/or cards", "cards fees"),
        *("<answer>fees\ncards</answer>", "<answer>cards</answer> Answer: fees"),
        *(r"\boxed{cards}, \boxed{fees}", r"\boxed{fees} or \boxed{cards}", "not fees"),
        *("Answer: ['fees', 'cards']", "Which of fees, cards?", "<think>fees", "none of these"),
        *("Answer: fees\nAnswer: cards", "Answer: fees if not cards", "[fees]"),
    ],
)
def test_hedging_and_other_text_is_wrong(response: str) -> None:
    """The last answer is the label alone, or scores nothing."""
    assert score(verifier(), response, problem("fees")) == 0


def test_a_problem_s_own_labels_outrank_the_run_s() -> None:
    """They are read with the run's rules."""
    own = problem("no", labels=["yes", "no"])
    assert score(verifier(), "Answer: no", own) == 1
    assert score(VERIFIERS.read("label"), "Answer: no", own) == 1
    with pytest.raises(InvalidProblems, match=r"1: metadata: labels: 'NO' names two labels"):
        score(verifier(), "Answer: no", problem("no", labels=["no", "NO"]))


@pytest.mark.parametrize(
    ("labels", "answer", "fault"),
    [
        ([], "fees", "there are no labels; list them in the run's verifier"),
        (["fees"], "cards", "the answer 'cards' is none of the labels: fees"),
        (["</answer>x"], "</answer>x", "the answer cannot be told from a response's layout"),
    ],
)
def test_an_answer_that_cannot_be_right_is_told(labels: object, answer: str, fault: str) -> None:
    """The fault says what to do."""
    told = verifier(labels).fault(problem(answer))
    assert told and fault in told


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        ([5], "labels.0.label: it must be text, in quotes"),
        ([["a", 5]], "labels.0.synonyms.1: it must be text, in quotes"),
        ([" \u00a0"], "the label ' \\xa0' is blank"),
        (["a", ["b", "A"]], "'A' names two labels; leave it out of one of them"),
        (["a"] * 501, "at most 500"),
        ([["a"] * 21], "at most 20"),
        (["a" * 201], "at most 200"),
        (["a" * 190 + str(n) for n in range(300)], "at most 32,768 may be"),
        ([5] * 1_000_000, "labels.0.label: "),
        ("fees", "labels: "),
    ],
)
def test_labels_that_are_not_distinct_are_refused(labels: object, fault: str) -> None:
    """The message names the label."""
    with pytest.raises(ValidationError) as refused:
        verifier(labels)
    assert fault in first_fault(refused.value)


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5), st.data())
def test_its_own_right_response_is_right_and_nothing_is_not(
    labels: list[str], data: st.DataObject
) -> None:
    """Whatever the labels are, unless it has said that they are faulty."""
    try:
        given = verifier(labels)
    except ValidationError:
        return
    item = problem(data.draw(st.sampled_from(labels)))
    if given.fault(item) is None:
        assert given.score(given.right_response(item), item) == 1
    assert given.score("", item) == 0
