"""The state machine of a run, as pure functions.

created ──opened──▶ open ──started──▶ training ◀──exchange_ended── exchanging
                                         │  └────exchange_began──────▶ │
                                         └──────updates_closed─────────┘
                                                      ▼
    training (round + 1) ◀──aggregated── aggregating ──aggregated──▶ finished (last round)

cancelled is reached from every state but finished. `paused` is a flag on any state between
open and finished: nothing new is given out, what is under way may come in.
"""

from dataclasses import dataclass, replace

from pubswap_protocol.errors import WrongState
from pubswap_protocol.messages import RunState

ROUND_UNDER_WAY = frozenset({RunState.TRAINING, RunState.EXCHANGING})
ENDED = frozenset({RunState.FINISHED, RunState.CANCELLED})


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Where a run is; `round` is 0 before the start."""

    state: RunState
    paused: bool
    round: int
    rounds: int


def opened(status: RunStatus) -> RunStatus:
    """Members can now see the run's initial adapter."""
    _require(status, {RunState.CREATED}, "open", "A run is opened once.")
    return replace(status, state=RunState.OPEN)


def started(status: RunStatus) -> RunStatus:
    """Round 1 begins."""
    _require(status, {RunState.OPEN}, "start", "Only an open run that has not begun can start.")
    return replace(status, state=RunState.TRAINING, round=1)


def exchange_began(status: RunStatus) -> RunStatus:
    """The first client of a public step has sent its responses."""
    _require(status, ROUND_UNDER_WAY, "exchange in", "Ask for the task again.")
    return replace(status, state=RunState.EXCHANGING)


def exchange_ended(status: RunStatus) -> RunStatus:
    """The last open exchange is closed."""
    _require(status, {RunState.EXCHANGING}, "end an exchange in", "There is none under way.")
    return replace(status, state=RunState.TRAINING)


def updates_closed(status: RunStatus) -> RunStatus:
    """The round takes no further update."""
    _require(status, ROUND_UNDER_WAY, "aggregate", "No round is under way.")
    return replace(status, state=RunState.AGGREGATING)


def aggregated(status: RunStatus) -> RunStatus:
    """The round's adapter is published: the next round begins, or the run is finished."""
    _require(status, {RunState.AGGREGATING}, "publish a round of", "No round is being averaged.")
    if status.round == status.rounds:
        return replace(status, state=RunState.FINISHED, paused=False)
    return replace(status, state=RunState.TRAINING, round=status.round + 1)


def paused(status: RunStatus) -> RunStatus:
    """Nothing new is given out."""
    _require_begun(status, "pause")
    return replace(status, paused=True)


def resumed(status: RunStatus) -> RunStatus:
    """Work is given out again."""
    _require_begun(status, "resume")
    return replace(status, paused=False)


def cancelled(status: RunStatus) -> RunStatus:
    """The run ends for good; its adapters so far are kept."""
    if status.state in ENDED:
        raise WrongState(f"The run is already {status.state}.")
    return replace(status, state=RunState.CANCELLED, paused=False)


def _require_begun(status: RunStatus, verb: str) -> None:
    if status.state in ENDED or status.state is RunState.CREATED:
        raise WrongState(f"Cannot {verb} a run that is {status.state}.")


def _require(
    status: RunStatus, allowed: "set[RunState] | frozenset[RunState]", verb: str, advice: str
) -> None:
    if status.state not in allowed:
        raise WrongState(f"Cannot {verb} a run that is {status.state}. {advice}")
