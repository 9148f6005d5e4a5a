"""Public prompts that members could not read are refused before a run opens."""

import pytest

from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.problems import Problem, parse_problems
from pubswap_protocol.sent_prompts import check_sent_prompts

LINE = '{{"id":"{}","prompt":"2 + 2 =","answer":"4","metadata":{{"unit":{}}}}}\n'


def with_metadata(*units: str) -> list[Problem]:
    """Problems with these texts of JSON in their metadata."""
    return parse_problems("".join(LINE.format(n, unit) for n, unit in enumerate(units)))


@pytest.mark.parametrize("unit", ["NaN", "-Infinity", "1e999", "[" * 197 + "]" * 197])
def test_metadata_that_would_arrive_otherwise_is_refused(unit: str) -> None:
    """No member could find such a prompt in the set that it approved."""
    problems = with_metadata("1", unit)
    with pytest.raises(InvalidProblems, match=r"^The set, line 2 \(1\): its metadata is not the"):
        check_sent_prompts(problems, 1, "The set")


@pytest.mark.parametrize("unit", ["null", "-0.0", "0.1234567890123456789", "9" * 40, '"\\u0000"'])
def test_other_metadata_is_sent(unit: str) -> None:
    """Also in lists that are a hundred deep."""
    check_sent_prompts(with_metadata(unit, "[" * 100 + unit + "]" * 100), 2, "The set")


@pytest.mark.parametrize(
    ("unit", "what"),
    [
        ('"' + "x" * (1 << 21) + '"', r"16,\d{3},\d{3} bytes"),
        (f"[{'1,' * (1 << 17)}1]", r"1,\d{3},\d{3} values"),
        (f"[{'[],' * (1 << 14)}1]", r"13\d,\d{3} lists and objects"),
    ],
)
def test_a_step_of_too_much_metadata_is_refused(unit: str, what: str) -> None:
    """Each of the prompts alone would fit. At the end of an epoch one prompt may come twice."""
    whole, small = with_metadata(*[unit] * 8), with_metadata(*[unit] * 3, *["1"] * 5)
    for problems, per_step in ((whole, 8), (with_metadata(*[unit] * 4, *["1"] * 4), 8)):
        with pytest.raises(InvalidProblems, match=rf"the 8 prompts of a public step may .*{what}"):
            check_sent_prompts(problems, per_step, "The set")
    check_sent_prompts(whole, 7, "The set")
    check_sent_prompts(small, 8, "The set")
