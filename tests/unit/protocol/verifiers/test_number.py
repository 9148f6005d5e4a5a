"""`number`: a quantity with a tolerance, units and either decimal mark."""

import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pubswap_protocol.errors import InvalidProblems, first_fault
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.registry import VERIFIERS, score
from pubswap_protocol.verifiers.verifier import Verifier

EURO = {"units": ["EUR", "€", "Euro", "Rs.", "m2"]}
COMMA = {"decimal": ","}


def verifier(**parameters: object) -> Verifier:
    return VERIFIERS.read({"name": "number", **parameters})


def problem(answer: str, **metadata: object) -> Problem:
    return Problem(id="1", prompt="12 or 13?", answer=answer, metadata=metadata)


@pytest.mark.parametrize(
    ("response", "answer", "parameters"),
    [
        ("Answer: 12.50", "12.5", {}),
        ("It is\n**12.5**.", "12.5", {}),
        (r"\boxed{-12}", "-12", {}),
        ("Answer: \u221212", "-12", {}),
        ("Answer: +12", "12", {}),
        ("Answer: - 12", "-12", {}),
        ("Answer: \uff11\uff12", "12", {}),
        ("Answer: 1,234.50", "1234.5", {}),
        ("Answer: 1 234.50", "1,234.5", {}),
        ("Answer: 1\u202f234\u202f567", "1234567", {}),
        ("Answer: 1'234", "1234", {}),
        ("Answer: 1\u2019234", "1234", {}),
        (r"\boxed{1{,}234}", "1234", {}),
        (r"\boxed{1\,234\,567.5}", "1234567.5", {}),
        ("Answer: 1.2e3", "1200", {}),
        ("Answer: 1.2E-3", ".0012", {}),
        ("Answer: 007", "7", {}),
        ("Answer: -0", "0", {}),
        ("Answer: 12", "$12$", {}),
        ("Answer: 1.234,50", "1234,5", COMMA),
        ("Answer: 1.234", "1234", COMMA),
        ("Answer: 1,234", "1.234", {"decimal": ",", "tolerance": 1233}),
        ("Answer: 12 EUR", "12", EURO),
        ("Answer: 12€.", "12 EUR", EURO),
        ("Answer: €12", "12", EURO),
        ("Answer: -€12", "-12", EURO),
        ("Answer: EUR -12", "-12", EURO),
        ("Answer: 12 Rs.", "12", EURO),
        ("Answer: Rs. 12", "12", EURO),
        ("Answer: 12 m2", "12", EURO),
        (r"\boxed{12\text{ EUR}}", "12", EURO),
        (r"Answer: \$12", "12", {"units": ["$"]}),
        ("Answer: 12%", "0.12", {}),
        (r"\boxed{12\%}", "12 %", {}),
        ("Answer: 12%", "12", {"units": ["%"]}),
        ("Answer: 12.6", "12.5", {"tolerance": 0.1}),
        ("Answer: 12.4", "12.5", {"tolerance": 0.1}),
        ("Answer: 101", "100", {"relative_tolerance": 0.01}),
        ("Answer: -101", "-100", {"relative_tolerance": 0.01}),
        ("Answer: 12\nAnswer: 13", "13", {}),
        ("<think>12</think>13", "13", {}),
    ],
)
def test_a_number_within_its_tolerance_is_right(
    response: str, answer: str, parameters: dict[str, object]
) -> None:
    """However it is written."""
    assert score(verifier(**parameters), response, problem(answer)) == 1
    assert verifier(**parameters).fault(problem(answer)) is None


@pytest.mark.parametrize("parameters", [{}, EURO, COMMA])
@pytest.mark.parametrize(
    "response",
    [
        *("", "Answer:", "-", "12 or 13", "12, 13", "12; 13", "12/13", "12-13", "12..13", "12 13"),
        *("12 EUR or 13 EUR", "12 to 13", "12 (or 13)", "about 12", "12 thousand", "12k", "x = 12"),
        *("nan", "NaN", "inf", "-inf", "Infinity", "1e999", "-1e999", "0x0c", "1_2", "0b1100"),
        *("12\u00b2", "\u0661\u0662", "\u216b", "\u246b", "twelve", "12!", "12 USD", "EUR 12 EUR"),
        *("[12]", "(12)", "12 or more", "--12", "+-12", "-+12", "EUR", "minus 12", "12e", "e12"),
        *("<answer>12\n13</answer>", r"\boxed{12}, \boxed{13}", "12 or 13?", "<think>12", "1,2"),
        *("1,200", "1.200", "12,00,0", "12,", "12\u0000", "1 2", "'12.5'"),
    ],
)
def test_several_numbers_or_other_text_are_wrong(
    response: str, parameters: dict[str, object]
) -> None:
    """Hedging, words that change the value, and what only Python takes for a number."""
    read = {"12!": 1, "12,": 1}  # a sentence's own sign behind the number
    right = read.get(response, 0)
    assert score(verifier(**parameters), response, problem("12")) == right


@pytest.mark.parametrize(
    ("response", "right"),
    [("12.6", 1), ("12.60000000000000000000000000001", 0), ("12.4", 1), ("12.39999999999999", 0)],
)
def test_a_tolerance_is_exact(response: str, right: float) -> None:
    """Rounding of floats moves no border."""
    assert score(verifier(tolerance=0.1), response, problem("12.5")) == right


@given(
    value=st.decimals("-1e12", "1e12", allow_nan=False, places=4),
    off=st.decimals("-1", "1", allow_nan=False, places=4),
    tolerance=st.sampled_from([0.0, 0.0001, 0.25, 0.5]),
    relative=st.sampled_from([0.0, 1e-9, 0.01]),
    comma=st.booleans(),
)
def test_verdicts_are_those_of_fractions(
    value: Decimal, off: Decimal, tolerance: float, relative: float, comma: bool
) -> None:
    """With thousands and either mark, as Python's own format writes them."""
    written, gold = f"{value + off:,.4f}", f"{value:.4f}"
    if comma:
        written = written.translate({ord(","): ".", ord("."): ","})
        gold = gold.replace(".", ",")
    limit = max(Fraction(str(tolerance)), Fraction(str(relative)) * abs(Fraction(value)))
    judge = verifier(
        tolerance=tolerance, relative_tolerance=relative, decimal="," if comma else "."
    )
    assert score(judge, f"Answer: {written}", problem(gold)) == (abs(Fraction(off)) <= limit)


@pytest.mark.parametrize(
    "response",
    [
        *("9" * 65_530, "9," * 32_000, "1" + ",000" * 16_000, "-" * 65_000, " " * 65_000 + "12"),
        *("€" * 65_000, "0." + "0" * 65_000, "1e" + "9" * 65_000, "\\text{" * 10_000),
    ],
)
def test_the_longest_responses_take_no_time(response: str) -> None:
    """Nor do a million digits in a reference answer."""
    judge, began = verifier(**EURO), time.process_time()
    assert score(judge, response, problem("9" * 1_000_000)) == 0
    assert score(judge, response, problem("9" * 400)) == 0
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("12 or 13", "'12 or 13' is not a number with the decimal mark '.', perhaps with EUR or"),
        ("12,5", "is not a number"),
        ("9" * 1000, "is not a number"),
        ("inf", "is not a number"),
    ],
)
def test_an_answer_that_is_no_number_is_told(answer: str, fault: str) -> None:
    """Nothing is right then."""
    told = verifier(**EURO).fault(problem(answer))
    assert told and fault in told
    assert score(verifier(**EURO), f"Answer: {answer}", problem(answer)) == 0


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"tolerance": -1}, "tolerance: "),
        ({"tolerance": float("nan")}, "tolerance: "),
        ({"tolerance": "0.1"}, "tolerance: "),
        ({"tolerance": 10**400}, "tolerance: "),
        ({"relative_tolerance": 1.5}, "relative_tolerance: "),
        ({"units": ["12"]}, "units.0: '12' is no unit"),
        ({"units": [" EUR"]}, "units.0: ' EUR' is no unit"),
        ({"units": ["x"] * 51}, "units: "),
        ({"units": "EUR"}, "units: "),
        ({"decimal": "·"}, "decimal: "),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, object], fault: str) -> None:
    """In settings and in a problem's metadata."""
    with pytest.raises(ValidationError) as refused:
        verifier(**parameters)
    assert first_fault(refused.value).startswith(fault)
    with pytest.raises(InvalidProblems, match="1: metadata: "):
        verifier().on(problem("12", **parameters))


def test_a_problem_s_own_parameters_outrank_the_run_s() -> None:
    """Only those that it sets."""
    own = problem("12", tolerance=1, units=["kg"])
    assert score(verifier(decimal=","), "Answer: 12,9 kg", own) == 1


@given(st.text(max_size=30) | st.decimals(allow_nan=True).map(str), st.sampled_from([{}, EURO]))
def test_its_own_right_response_is_right_and_nothing_is_not(
    answer: str, parameters: dict[str, object]
) -> None:
    """Whatever the answer is, unless it has said that it is faulty."""
    judge, item = verifier(**parameters), problem(answer or "0")
    if judge.fault(item) is None:
        assert judge.score(judge.right_response(item), item) == 1
    assert judge.score("", item) == 0
