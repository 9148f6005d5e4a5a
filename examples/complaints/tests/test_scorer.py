"""The triage of a complaint: what is right, what is partly right, and what is nothing."""

import pytest

from complaint_triage import score

REFERENCE = '{"category": "card", "amount": 120.5, "date": "2026-03-01"}'


def scored(response: str, answer: str = REFERENCE, **metadata: object) -> float:
    """The score of a response."""
    return score(response, prompt="I was charged twice.", answer=answer, metadata=metadata)


@pytest.mark.parametrize(
    "response",
    [
        REFERENCE,
        f"Here it is:\n```json\n{REFERENCE}\n```",
        '{"date": "2026-03-01", "amount": 120.50, "category": " Credit Card "}',
        f'<think>{{"category": "loan"}} or</think> {REFERENCE}',
    ],
)
def test_a_right_triage(response: str) -> None:
    """Order, synonyms, a fence and thoughts before it change nothing."""
    assert scored(response) == 1.0


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ('{"category": "card"}', 0.5),
        ('{"category": "card", "amount": 120.5}', 0.8),
        ('{"category": "loan", "amount": 120.5, "date": "2026-03-01"}', 0.5),
        ('{"category": "card", "amount": 121, "date": null}', 0.5),
        ("{}", 0.0),
    ],
)
def test_a_partly_right_triage(response: str, expected: float) -> None:
    """Each right field earns its weight."""
    assert scored(response) == pytest.approx(expected)


def test_a_field_that_only_the_response_has() -> None:
    """An invented date costs as much as a wrong one; null is no date."""
    answer = '{"category": "fee", "amount": 15}'
    assert scored(answer, answer) == 1.0
    assert scored('{"category": "fee", "amount": 15, "date": null}', answer) == 1.0
    invented = '{"category": "fee", "amount": 15, "date": "2026-03-01"}'
    assert scored(invented, answer) == pytest.approx(0.8)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "The category is card.",
        "card",
        '["card", 120.5]',
        REFERENCE + REFERENCE,
        f"{REFERENCE} or {{}}",
        '{"category": "card", "category": "card"}',
        '{"category": "card", "amount": NaN}',
        '{"category": "card", "amount": 1e999}',
        '{"category": "card", "amount": ' + "9" * 5000 + "}",
        '{"category": "card", "amount": "120.5"}',
        '{"category": "card", "amount": true}',
        '{"category": "card", "amount": -1}',
        '{"category": ["card", "loan"]}',
        '{"category": "card or loan"}',
        '{"category": "card", "date": "20260301"}',
        '{"category": "card", "date": "2026-02-30"}',
        '{"category": "card", "reason": "charged twice"}',
        '{"category": "card"',
        '{"category": ' + "[" * 50_000,
    ],
)
def test_what_is_no_triage(response: str) -> None:
    """It scores 0, and nothing is guessed."""
    assert scored(response) == 0.0


def test_the_tolerance() -> None:
    """A cent by default, or what the problem says."""
    near = REFERENCE.replace("120.5", "120.51")
    assert scored(near) == 1.0
    assert scored(near, tolerance=0) == pytest.approx(0.7)
    assert scored(REFERENCE.replace("120.5", "125"), tolerance=5) == 1.0


@pytest.mark.parametrize("answer", ["card", "{}", '{"category": "cards"}', '{"amount": 3}'])
def test_an_unusable_reference(answer: str) -> None:
    """It is an error, not a score: nobody can be right."""
    with pytest.raises(ValueError):
        scored(REFERENCE, answer)
