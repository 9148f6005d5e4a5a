"""What all verifiers for a task of one's own have in common."""

import json

import pytest

from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import VerifierPool
from pubswap_protocol.verifiers.registry import VERIFIERS, score

WRITTEN = [
    ({"name": "label", "labels": ["fees", ["cards", "Karten"]]}, "Karten"),
    ({"name": "number", "tolerance": 0.5, "units": ["EUR"], "decimal": ","}, "1.234,5"),
    ({"name": "regex", "pattern": r"[A-Z]{2}-\d+"}, "AB-12"),
    (
        {"name": "json", "fields": [{"name": "a", "weight": 2.0}, {"name": "b.c", "set": True}]},
        '{"a": 1, "b": {"c": [1, 2]}}',
    ),
    ({"name": "sql", "database": "CREATE TABLE t(a)", "ordered": True}, "SELECT 1"),
]
RESPONSES = [
    "",
    "Answer: fees",
    "Answer: 1.234,9 EUR",
    "Answer: CD-3",
    '{"a": 1}',
    "Answer: VALUES (1)",
]
written = pytest.mark.parametrize(
    ("table", "answer"), WRITTEN, ids=lambda v: v["name"] if isinstance(v, dict) else ""
)


@written
def test_parameters_travel_as_data(table: dict[str, object], answer: str) -> None:
    """In a run's settings as JSON, and back."""
    verifier = VERIFIERS.read(table)
    assert VERIFIERS.read(json.loads(json.dumps(verifier.model_dump(mode="json")))) == verifier
    settings = RunSettings(verifier=table)  # type: ignore[arg-type]
    again = RunSettings.model_validate_json(settings.model_dump_json())
    assert again.verifier == verifier
    assert again == settings
    assert verifier.fault(Problem(id="1", prompt="?", answer=answer)) is None


@written
def test_processes_score_as_one_does(table: dict[str, object], answer: str) -> None:
    """With the run's parameters, and with a problem's."""
    name, parameters = str(table["name"]), {k: v for k, v in table.items() if k != "name"}
    verifier = VERIFIERS.read(table)
    plain = Problem(id="1", prompt="?", answer=answer)
    own = Problem(id="2", prompt="?", answer=answer, verifier=name, metadata=parameters)
    responses = [verifier.right_response(plain), *RESPONSES]
    items = [(text, problem) for problem in (plain, own) for text in responses]
    here = [score(problem.verifier or verifier, text, problem) for text, problem in items]
    with VerifierPool(2) as pool:
        assert pool.score_many(verifier, items) == here
    assert here[0] == here[len(responses)] == 1
    assert here[: len(responses)] == here[len(responses) :]
    assert 0 < sum(here) < len(here)


def test_form_and_content_may_be_weighed() -> None:
    """A right response to both scores 1."""
    form = {
        "name": "regex",
        "whole": True,
        "pattern": r"(?s)<think>.+</think>\s*<answer>.+</answer>",
    }
    form["example"] = "<think>Hm.</think><answer>{answer}</answer>"
    parts = [{"verifier": form, "weight": 0.2}, {"verifier": WRITTEN[0][0], "weight": 0.8}]
    verifier = VERIFIERS.read({"name": "weighted", "parts": parts})
    problem = Problem(id="1", prompt="?", answer="fees")
    assert verifier.fault(problem) is None
    assert score(verifier, verifier.right_response(problem), problem) == 1
    assert score(verifier, "Answer: fees", problem) == pytest.approx(0.8)
    assert score(verifier, "<think>x</think><answer>cards</answer>", problem) == pytest.approx(0.2)
