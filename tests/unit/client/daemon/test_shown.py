"""The responses that an evaluator shows to its operator."""

import httpx
import pytest

from pubswap_client.daemon.evaluator import Judged, pass_at_1, shown
from pubswap_protocol.bounds import (
    MAX_JSON_BYTES,
    MAX_SHOWN,
    MAX_SHOWN_BYTES,
    MAX_SHOWN_TEXT,
    MAX_TOPIC_BYTES,
)
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.messages import FullEvaluation
from pubswap_protocol.problems import Problem, check_topics
from pubswap_protocol.verifiers.confined.worker import Scored


def judged(right: int, wrong: int, topic: str = "all", text: str = "") -> list[Judged]:
    """So many responses, the right ones first, numbered in their order."""
    cases = [
        (f"{text}{n}", Problem(id=f"{n}", prompt="?", answer="1", topic=topic))
        for n in range(right + wrong)
    ]
    return [Judged(case, Scored(float(n < right), 0), n < right) for n, case in enumerate(cases)]


def numbers(right: int, wrong: int) -> list[int]:
    """The responses shown of so many."""
    return [int(each.response) for each in shown(judged(right, wrong))]


def test_right_and_wrong_responses_are_spread_over_the_set() -> None:
    """Five of each; where one kind has fewer, more of the other."""
    assert numbers(50, 100) == [0, 10, 20, 30, 40, 50, 70, 90, 110, 130]
    assert numbers(0, 20) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert numbers(20, 0) == numbers(0, 20)
    assert numbers(8, 2) == list(range(10)) == numbers(2, 8)
    assert numbers(2, 1) == [0, 1, 2]
    assert [each.right for each in shown(judged(7, 9))] == [True] * 5 + [False] * 5


def test_each_topic_has_its_own_in_the_order_of_names() -> None:
    """However the test set mixes them."""
    mixed = judged(20, 20, "b") + judged(3, 3, "a")
    topics = [each.topic for each in shown(mixed)]
    assert topics == ["a"] * 6 + ["b"] * 10


def test_a_long_text_is_cut_in_the_middle() -> None:
    """Its end has the answer; control characters are gone."""
    [long] = shown(judged(1, 0, text="begin\x00\x1b[2J" + "-" * 5000 + "end"))
    assert len(long.response) == MAX_SHOWN_TEXT
    assert long.response.startswith("begin  [2J---") and long.response.endswith("---end0")
    assert "- [...] -" in long.response


def test_all_of_them_fit_in_a_message() -> None:
    """Whole topics are left out, however long their texts are and however many there are."""
    many = [each for n in range(200) for each in judged(6, 6, f"{n:03}")]
    assert len(shown(many)) == MAX_SHOWN
    wide = [each for n in range(200) for each in judged(6, 6, f"{n:03}", "\U0001f600" * 2000)]
    found = shown(wide)
    size = sum(len(each.model_dump_json().encode()) for each in found)
    assert len(found) % 10 == 0 and MAX_SHOWN_BYTES * 0.8 < size <= MAX_SHOWN_BYTES


@pytest.mark.parametrize("letter", ["x", "\u6f22", '"', "\x01", "\U0001f600"])
def test_an_evaluation_of_any_test_set_that_is_accepted_fits_in_a_request(letter: str) -> None:
    """With topics of the longest names, as many responses as are shown, and all else."""
    each = len(httpx.Request("POST", "http://c", json=letter * 190).read())
    most = MAX_TOPIC_BYTES // (each + 32)
    sets = [
        [
            topic
            for n in range(count)
            for topic in judged(1, 1, f"{letter * 190}{n:05}", letter * 900)
        ]
        for count in (most, most + 1 + most // 4)
    ]
    check_topics([one.case[1] for one in sets[0]], "The test set")
    with pytest.raises(
        InvalidProblems, match=r"The test set has \d+ topics, which take \d{3},\d{3}"
    ):
        check_topics([one.case[1] for one in sets[1]], "The test set")
    overall, by_topic = pass_at_1([sets[0]])
    evaluation = FullEvaluation(
        pass_at_1=overall,
        by_topic=dict.fromkeys(by_topic, 0.1234567890123456),
        problems=len(sets[0]),
        seconds=1234.5678901234567,
        parts=dict.fromkeys((f"{letter * 190}{n}" for n in range(20)), 0.1234567890123456),
        warning="x" * 200,
        responses=shown(sets[0]),
    )
    body = httpx.Request("POST", "http://c", json=evaluation.model_dump(mode="json")).read()
    assert MAX_JSON_BYTES * 0.7 < len(body) <= MAX_JSON_BYTES
