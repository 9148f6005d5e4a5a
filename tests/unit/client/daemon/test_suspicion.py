"""The warning about right answers that are no answers."""

import time

import pytest

from pubswap_client.daemon.suspicion import MIN_RIGHT, suspicion
from pubswap_protocol.problems import Problem

Right = list[tuple[str, Problem]]


def problem(prompt: str, answer: str, topic: str = "all", verifier: str | None = None) -> Problem:
    """A problem with these texts."""
    return Problem(id="1", prompt=prompt, answer=answer, topic=topic, verifier=verifier)


def differences(count: int, form: str, topic: str = "all") -> Right:
    """Right answers to differences; `form` has {a}, {b} and {c}, their difference."""
    return [
        (
            form.format(a=n + 40, b=n, c=40),
            problem(f"Subtract {n} from {n + 40}.", "40", topic),
        )
        for n in range(50, 50 + count)
    ]


@pytest.mark.parametrize(
    "form",
    [
        "{a} - {b}",
        "The answer is {a}-{b}.",
        r"It is \boxed{{{a} - {b}}}.",
        "<answer>{a} \N{MINUS SIGN} {b} + 0</answer>",
        "Answer: x = ({a}) - ({b})",
        r"$\boxed{{2^3 \cdot 5}}$",
    ],
)
def test_a_calculation_in_place_of_a_number_is_suspicious(form: str) -> None:
    """The question's or another one, wherever the response states it."""
    assert suspicion(differences(20, form), "math-verify") == (
        "20 of 20 right answers repeat the question or leave a calculation to be done"
    )


@pytest.mark.parametrize(
    "form",
    [
        "{c}",
        r"{a} - {b} = \boxed{{{c}}}",
        "Answer: {a} - {b} = {c}",
        "The answer is {c}, since {a} - {b} = {c}.",
        "{c} (that is {a} - {b})",
        "80/2",
        r"\boxed{{\frac{{80}}{{2}}}}",
        r"4 \times 10^{{1}}",
        "40.0",
    ],
)
def test_a_value_in_any_form_is_not(form: str) -> None:
    """A number with its calculation, a fraction, a power of ten."""
    assert suspicion(differences(20, form), "math-verify") is None


def test_an_echo_of_the_question_is_suspicious() -> None:
    """Also where the gold is an expression, and with other spaces."""
    right = [
        (f"$({n}x+1)^2$", problem(f"Expand $({n} x + 1)^2$ for me.", f"{n * n}x^2 + {2 * n}x + 1"))
        for n in range(3, 23)
    ]
    assert "repeat the question" in (suspicion(right, "math-verify") or "")


def test_answers_that_stand_in_the_question_are_not_echoes() -> None:
    """If the gold stands there, too, in whatever form, or if they are one word or number."""
    extracts = [
        (
            f"Answer: Mount {name}",
            problem(f"Which is higher, Mount {name} or the hill?", f"the Mount {name}"),
        )
        for name in map(chr, range(65, 90))
    ]
    fractions = [
        (
            rf"\boxed{{{n}/{n + 1}}}",
            problem(rf"Which is larger, {n}/{n + 1} or 1/{n}?", rf"\frac{{{n}}}{{{n + 1}}}"),
        )
        for n in range(3, 30)
    ]
    numbers = [(f"{n}", problem(f"How much is {n}.00?", f"{n}.0")) for n in range(30, 60)]
    for right in (extracts, fractions, numbers):
        assert suspicion(right, "math-verify") is None


def test_one_text_for_different_golds_is_suspicious() -> None:
    """But not if it is the gold, or if there is only one gold."""
    same = [("x", problem(f"What is {n}?", f"{n}")) for n in range(20)]
    assert suspicion(same, "reasoning_gym:x") == "20 of 20 right answers are the same text"
    yes = [("Yes", problem(f"Is {n} even?", "yes")) for n in range(30)]
    half = [("0.5", problem(f"What is {n}/{2 * n}?", r"\frac12")) for n in range(40, 70)]
    for right in (yes, half):
        assert suspicion(right, "math") is None


@pytest.mark.parametrize("verifier", ["exact", "choice"])
def test_answers_that_are_right_by_their_text_are_never_suspicious(verifier: str) -> None:
    """Whether the run or the problem names such a verifier."""
    right = [
        ("B", problem("What?\nA. 27 - 8\nB. 27 + 8", "B", verifier=given))
        for given in (None, verifier)
        for _ in range(30)
    ]
    assert suspicion(right, verifier) is None
    assert suspicion(right[30:], "math") is None


def test_few_answers_and_a_minority_are_not_suspicious() -> None:
    """From MIN_RIGHT answers on, and nine of ten."""
    echo, worked = "{a} - {b}", "{c}"
    assert suspicion(differences(MIN_RIGHT - 1, echo), "math") is None
    assert suspicion([], "math") is None
    most = differences(90, echo) + differences(10, worked)
    assert "90 of 100" in (suspicion(most, "math") or "")
    assert suspicion(most[1:], "math") is None


def test_a_topic_is_suspicious_on_its_own() -> None:
    """The first model trained here repeated three kinds of questions of four."""
    right = differences(30, "{a} - {b}", topic="minus\x1b[2J") + differences(20, "{c}", "largest")
    assert suspicion(right, "math") == (
        "30 of 30 right answers to the topic minus [2J repeat the question or leave a calculation "
        "to be done"
    )
    long = differences(30, "{a} - {b}", topic="t" * 200) + differences(20, "{c}", "largest")
    assert len(suspicion(long, "math") or "") <= 200


@pytest.mark.parametrize("text", ["1" + " " * 60_000, "1 - " * 15_000, r"\frac{" * 10_000, "$" * 9])
def test_a_hostile_response_costs_little(text: str) -> None:
    """However long it is."""
    began = time.process_time()
    suspicion([(text, problem(text, "1"))] * MIN_RIGHT, "math")
    assert time.process_time() - began < 10
