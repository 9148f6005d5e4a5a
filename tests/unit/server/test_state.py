"""The state machine of a run."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubswap_protocol.errors import WrongState
from pubswap_protocol.messages import RunState as S
from pubswap_server.runs import state
from pubswap_server.runs.state import RunStatus, reconsidered, reopened, rolled_back

DRAWN: dict[str, dict[S, S]] = {
    "opened": {S.CREATED: S.OPEN},
    "started": {S.OPEN: S.TRAINING},
    "exchange_began": {S.TRAINING: S.EXCHANGING, S.EXCHANGING: S.EXCHANGING},
    "exchange_ended": {S.EXCHANGING: S.TRAINING},
    "updates_closed": {S.TRAINING: S.AGGREGATING, S.EXCHANGING: S.AGGREGATING},
    "aggregated": {S.AGGREGATING: S.TRAINING},
    "paused": {s: s for s in (S.OPEN, S.TRAINING, S.EXCHANGING, S.AGGREGATING)},
    "resumed": {s: s for s in (S.OPEN, S.TRAINING, S.EXCHANGING, S.AGGREGATING)},
    "cancelled": {s: S.CANCELLED for s in S if s not in (S.FINISHED, S.CANCELLED)},
}


def transition(name: str) -> Callable[[RunStatus], RunStatus]:
    """The function of this name."""
    found: Callable[[RunStatus], RunStatus] = getattr(state, name)
    return found


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("start", list(S))
def test_each_transition_leads_where_it_is_drawn_and_nowhere_else(name: str, start: S) -> None:
    """Every pair of state and transition is in the diagram, or refused with the state's name."""
    before = RunStatus(start, False, 1, 3)
    if start in DRAWN[name]:
        assert transition(name)(before).state is DRAWN[name][start]
    else:
        with pytest.raises(WrongState, match=rf"a run that is {start.value}\. \w+"):
            transition(name)(before)


def test_the_last_round_finishes_the_run_and_ends_a_pause() -> None:
    """Rounds count from 1 to the last; then the run is finished."""
    after = state.aggregated(RunStatus(S.AGGREGATING, True, 3, 3))
    assert after == RunStatus(S.FINISHED, False, 3, 3)
    assert state.aggregated(RunStatus(S.AGGREGATING, False, 2, 3)).round == 3
    assert state.started(RunStatus(S.OPEN, False, 0, 3)).round == 1


def test_a_pause_is_a_flag_that_resuming_takes_back() -> None:
    """The state stays, pausing twice changes nothing, and the flag survives the round's moves."""
    status = RunStatus(S.TRAINING, False, 1, 3)
    held = state.paused(status)
    assert held == state.paused(held) == RunStatus(S.TRAINING, True, 1, 3)
    assert state.resumed(held) == state.resumed(status) == status
    assert state.aggregated(state.updates_closed(held)).paused
    assert state.cancelled(held) == RunStatus(S.CANCELLED, False, 1, 3)


@given(st.lists(st.sampled_from(sorted(DRAWN)), max_size=60))
def test_no_sequence_of_calls_leaves_the_machine(names: list[str]) -> None:
    """Rounds never go back or past the last, and an ended run stays ended."""
    status = RunStatus(S.CREATED, False, 0, 2)
    for name in names:
        try:
            after = transition(name)(status)
        except WrongState:
            continue
        assert status.state not in (S.FINISHED, S.CANCELLED)
        assert status.round <= after.round <= min(status.round + 1, after.rounds)
        assert not (after.paused and after.state in (S.CREATED, S.FINISHED, S.CANCELLED))
        status = after


def test_going_back_begins_the_next_round_of_an_earlier_one() -> None:
    """From a round under way or being averaged, to any before it, and never forwards."""
    for where in (S.TRAINING, S.EXCHANGING, S.AGGREGATING):
        status = RunStatus(where, False, 3, 5)
        for to in range(3):
            assert rolled_back(status, to) == RunStatus(S.TRAINING, False, to + 1, 5)
        for to in (-1, 3, 4):
            with pytest.raises(WrongState, match="from 0 to 2"):
                rolled_back(status, to)
    for where in (S.CREATED, S.OPEN, S.FINISHED, S.CANCELLED):
        for change in (reconsidered, partial(rolled_back, to=0)):
            with pytest.raises(WrongState):
                change(RunStatus(where, False, 3, 5))


def test_leaving_an_update_out_opens_a_closed_round() -> None:
    """A round that is under way stays as it is."""
    for where in (S.TRAINING, S.EXCHANGING):
        assert reconsidered(RunStatus(where, True, 3, 5)) == RunStatus(where, True, 3, 5)
    closed = RunStatus(S.AGGREGATING, True, 3, 5)
    assert reconsidered(closed) == RunStatus(S.TRAINING, True, 3, 5)


def test_only_a_closed_round_is_opened_for_a_lost_update() -> None:
    """A round under way has lost none that it was to average."""
    assert reopened(RunStatus(S.AGGREGATING, False, 3, 5)) == RunStatus(S.TRAINING, False, 3, 5)
    for where in set(S) - {S.AGGREGATING}:
        with pytest.raises(WrongState):
            reopened(RunStatus(where, False, 3, 5))
