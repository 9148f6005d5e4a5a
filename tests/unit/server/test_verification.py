"""Turns between runs and members, and what one submission may cost."""

from collections.abc import Sequence

import pytest

from pubswap_protocol.verifiers.confined.worker import Scored
from pubswap_server.exchange.budget import Case
from pubswap_server.exchange.verification import FairQueue

SECONDS = 5.0


def verify(costs: Sequence[float]) -> tuple[list[bool], float, int]:
    """Verify right answers that take these CPU seconds: verdicts, total CPU, number given up."""
    case, spent = Case(len(costs), SECONDS), 0.0
    while (following := case.next()) is not None:
        position, limit = following
        cut_off = costs[position] > limit
        seconds = min(costs[position], limit)
        spent += seconds
        case.note(Scored(float(not cut_off), seconds, cut_off), not cut_off)
    return case.correct, spent, case.given_up


def test_64_towers_of_powers_cost_some_seconds() -> None:
    """Rather than 64 times the limit of one."""
    correct, spent, given_up = verify([1e9] * 64)
    assert not any(correct)
    assert given_up == 64
    assert spent < 20


@pytest.mark.parametrize("seconds", [0.01, 0.4, 0.9])
def test_honest_answers_that_are_slow_have_their_time(seconds: float) -> None:
    """All 64 of them, although together they take longer than the towers."""
    correct, _, given_up = verify([seconds] * 64)
    assert all(correct)
    assert given_up == 0


def test_some_very_slow_answers_have_their_time() -> None:
    """Up to nearly the limit, among quick ones."""
    correct, _, _ = verify([0.02] * 30 + [2.4, 3.0] + [0.02] * 30)
    assert all(correct)


def test_towers_cost_the_answers_beside_them_nothing() -> None:
    """A submission's honest answers are judged right, wherever they are in it."""
    for towers in (1, 8, 32, 63):
        costs = [1e9] * towers + [0.05] * (64 - towers)
        for order in (costs, costs[::-1]):
            correct, spent, given_up = verify(order)
            assert correct == [cost < 1 for cost in order]
            assert given_up == towers
            assert spent < 25


def test_a_slow_answer_survives_two_towers() -> None:
    """The towers are tried first, and leave enough time."""
    correct, _, given_up = verify([1e9, 1e9, 1.2] + [0.01] * 61)
    assert correct == [False, False] + [True] * 62
    assert given_up == 2


def test_slow_answers_made_to_measure_are_bounded() -> None:
    """Each is just under the limit, but they get no more than about a second each."""
    _, spent, given_up = verify([4.9] * 64)
    assert given_up > 60
    assert spent < 30


def test_a_submission_that_loses_time_gets_less_and_then_counts_as_slow() -> None:
    """Each response may take half of what is left; slow ones leave a worker to the others."""
    case, given = Case(6, SECONDS), []
    while (following := case.next()) is not None and len(given) < 6:
        given.append((following[1], case.slow))
        case.note(Scored(0.0, following[1], True), False)
    limits, slow = zip(*given, strict=True)
    assert limits == (0.25, 0.25, 0.25, 0.125, 0.1, 0.1)
    assert slow == (False,) * 4 + (True,) * 2


def test_a_submission_of_which_only_slow_ones_are_left_is_slow() -> None:
    """They get the whole limit of a response, although the quick pass lost little."""
    case = Case(2, SECONDS)
    for cut_off in (False, True):
        assert not case.slow
        case.note(Scored(1.0, 0.1, cut_off), True)
    assert case.slow and case.next() == (1, SECONDS)


def test_no_response_gets_more_than_the_operator_s_limit() -> None:
    """However short it is; a second try would be no longer, so there is none."""
    case, given = Case(3, 0.05), []
    while (following := case.next()) is not None:
        given.append(following)
        case.note(Scored(0.0, following[1], True), False)
    assert given == [(0, 0.05), (1, 0.05), (2, 0.05)]
    assert case.given_up == 3


def test_runs_take_turns_and_so_do_their_members() -> None:
    """A member with many submissions does not delay others with one."""
    turns, many = FairQueue(), [("one", 1, step, "a") for step in range(5)]
    other, alone = ("one", 1, 0, "b"), ("two", 1, 0, "c")
    for key in (*many, other, alone):
        turns.add(key)
    order = []
    while (key := turns.take()) is not None:
        order.append(key)
        turns.give_back(key, done=True)
    assert order == [many[0], alone, other, *many[1:]]


def test_a_member_has_one_turn_at_a_time() -> None:
    """Its next turn begins where the last ended, and repeats nothing."""
    turns, first, second = FairQueue(), ("one", 1, 0, "a"), ("one", 1, 1, "a")
    turns.add(first)
    turns.add(second)
    assert turns.take() == first
    assert turns.take() is None
    turns.give_back(first, done=False)
    assert turns.take(lambda key: key != first) is None
    assert turns.take() == first
    turns.give_back(first, done=True)
    assert turns.take() == second
