"""Scores from 0 to 1, several in one, and from which score on a response is correct."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import given as given_settings
from pubswap_protocol.verifiers import VerifierPool, verifier_for, verifier_of, verifier_version
from pubswap_protocol.verifiers.verifier import VERIFIERS, Verifier
from pubswap_protocol.verifiers.weighted import Part, Weighted

FOUR = Problem(id="1", prompt="2 + 2 = ?", answer="4")
WEIGHTS = st.lists(st.integers(1, 10**6), min_size=1, max_size=8)


def settings(verifier: Any, **more: Any) -> RunSettings:
    return RunSettings.model_validate({"verifier": verifier, **more})


def weighted(*parts: tuple[str, float]) -> dict[str, Any]:
    return {
        "name": "weighted",
        "parts": [{"verifier": name, "weight": weight} for name, weight in parts],
    }


def scored(verifier: Any, response: str, scorer: Any = None) -> Any:
    with VerifierPool(**({"scorer": scorer} if scorer else {})) as pool:
        (one,) = pool.judge_many(verifier, [(response, FOUR)])
    return one


def test_a_weighted_score_is_the_mean_and_shows_its_parts() -> None:
    """`exact` and `math` disagree about 4.0; the second of the same name has a number."""
    verifier = settings(weighted(("math", 3.0), ("exact", 1.0), ("exact", 1.0))).verifier
    found = scored(verifier, "4.0")
    assert found.score == pytest.approx(3 / 5)
    assert found.parts == {"math": 1.0, "exact": 0.0, "exact 2": 0.0}
    assert scored(verifier, "4").score == 1.0
    assert scored(verifier, "").score == 0.0


@given(weights=WEIGHTS)
def test_what_is_right_in_every_part_is_right(weights: list[int]) -> None:
    """No rounding keeps it below 1, or what is right in some parts below their exact share."""
    parts = [("exact" if n % 2 else "math", weight / 7) for n, weight in enumerate(weights)]
    run = settings(weighted(*parts))
    assert run.verifier.score("4", FOUR) == 1.0
    share = Fraction(sum(weights[::2]), sum(weights))
    assume(share >= Fraction(1, 1000))  # the least `correct_at`
    only = settings(weighted(*parts), correct_at=float(share))
    assert only.is_correct(only.verifier.score("4.0", FOUR))
    assert not only.is_correct(float(share) - 1e-6)


@pytest.mark.parametrize(
    "verifier",
    [
        "math",
        "reasoning_gym:gcd",
        "plugin:complaints",
        {"name": "reasoning_gym", "task": "gcd"},
        weighted(("math", 1.0), ("reasoning_gym:gcd", 0.5)),
    ],
)
def test_a_verifier_survives_every_way_that_settings_are_stored(verifier: Any) -> None:
    """As a value, as JSON, and in the terms that members approve."""
    run = settings(verifier)
    stored = run.model_dump(mode="json")
    assert RunSettings.model_validate(stored) == run
    assert RunSettings.model_validate_json(run.model_dump_json()) == run
    assert VERIFIERS.read(json.loads(json.dumps(stored["verifier"]))) == run.verifier
    if not isinstance(verifier, dict):
        assert stored["verifier"] == str(run.verifier) == verifier
        assert given_settings(run) == ({"verifier": verifier} if verifier != "math" else {})


@pytest.mark.parametrize(
    ("verifier", "fault"),
    [
        ("oracle", "there is no verifier 'oracle'"),
        ("math:2", "there is no verifier"),
        ("reasoning_gym", "task"),
        ("plugin:../evil", "entry"),
        ({"name": "math", "weight": 2}, "no such parameter"),
        ({"name": "weighted", "parts": []}, "parts"),
        (weighted(("math", 0.0)), "weight"),
        (weighted(("math", -1.0)), "weight"),
        (weighted(("oracle", 1.0)), "oracle"),
        ({"name": "weighted", "parts": [{"verifier": weighted(("math", 1.0))}]}, "list its parts"),
    ],
)
def test_a_wrong_verifier_is_refused_by_name(verifier: Any, fault: str) -> None:
    """When the settings are read, not when the first response is scored."""
    with pytest.raises(ValidationError, match=fault):
        settings(verifier)


class Odd(Verifier):
    """A verifier whose scores are no scores."""

    name = "odd"
    quick = True  # no process could import it
    value: Any = None

    def score(self, response: str, problem: Problem) -> float:
        return self.value  # type: ignore[no-any-return]


@pytest.mark.parametrize("value", [float("nan"), 2, -0.1, "1", None, 1j, float("inf")])
def test_what_is_no_score_pays_nothing(value: object) -> None:
    """NaN, 2 and "1" are faults of the verifier."""
    assert scored(Odd(value=value), "x").score == 0.0


@pytest.mark.parametrize("value", [True, 1, Fraction(1, 2), 0.5])
def test_a_number_from_0_to_1_is_a_score(value: Any) -> None:
    """Whatever its type."""
    assert scored(Odd(value=value), "x").score == float(value)


def test_a_version_names_every_part_and_stays_short() -> None:
    """Members with another library in one part do not agree."""
    two = settings(weighted(("math", 1.0), ("math-verify", 1.0))).verifier
    library = verifier_version("math-verify").partition("+")[2]
    assert verifier_version(two).endswith(f"+math-verify+{library}")
    many = settings(weighted(*[("math", float(n)) for n in range(1, 20)])).verifier
    assert len(verifier_version(many)) <= 200


def test_the_name_of_the_runs_verifier_means_that_one() -> None:
    """With its parameters, and those of a part's; the metadata still outranks them."""
    run = {"name": "number", "tolerance": 0.5}
    named = Problem(id="2", prompt="?", answer="4", verifier="number")
    for own in (
        settings(run).verifier,
        settings(
            {"name": "weighted", "parts": [{"verifier": "exact"}, {"verifier": run}]}
        ).verifier,
    ):
        assert verifier_for(named, own) == settings(run).verifier
        exact = named.model_copy(update={"metadata": {"tolerance": 0.0}})
        assert verifier_for(exact, own).score("4.4", exact) == 0.0
        with VerifierPool() as pool:
            assert pool.score_many(own, [("4.4", named), ("4.4", exact)]) == [1.0, 0.0]


def test_the_right_response_is_right_in_all_parts() -> None:
    """Whichever of them has the form."""
    parts = [
        {"verifier": "math", "weight": 0.9},
        {"verifier": {"name": "regex", "whole": True, "pattern": "(?s)<answer>.*</answer>"}},
    ]
    for order in (parts, parts[::-1]):
        verifier = settings({"name": "weighted", "parts": order}).verifier
        assert verifier.score(verifier.right_response(FOUR), FOUR) == 1.0


def test_a_problems_own_verifier_is_its_judge() -> None:
    """With the run's for the others."""
    own = Problem(id="2", prompt="?", answer="B", verifier="choice")
    assert verifier_for(own, "math") == verifier_of("choice")
    assert verifier_for(FOUR, "math") == verifier_of("math")


def test_no_part_is_asked_for_a_score_outside_its_process() -> None:
    """A package's code runs in confined processes alone, also where reference answers are tried."""

    class Forbidden(Odd):
        def score(self, response: str, problem: Problem) -> float:
            raise AssertionError("run in this process")

    parts = tuple(Part(verifier=each) for each in (Forbidden(), verifier_of("math")))
    verifier = Weighted(parts=parts)
    assert verifier.right_response(FOUR) and verifier.fault(FOUR) is None
