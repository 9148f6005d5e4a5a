"""The state machine of a run, as pure functions.

created ──opened──▶ open ──started──▶ training ◀──exchange_ended── exchanging
                                         │  └────exchange_began──────▶ │
                                         ├──────updates_closed─────────┘
                                         │      ▲ reopened
                                         ▼      │ reconsidered
    training (round + 1) ◀──aggregated── aggregating ──aggregated──▶ finished (last round)

rolled_back leads from a round under way, or aggregating, to training in an earlier round or in the
same one. cancelled is reached from every state but finished. `paused` is a flag on any state
between open and finished: no new work is given out, nothing is taken from members, and no round or
exchange closes. Only the averaging of a round that was closed before goes on.
"""

from collections.abc import Set
from dataclasses import dataclass, replace

from pubswap_protocol.errors import WrongState
from pubswap_protocol.messages import RunState

ROUND_UNDER_WAY = frozenset({RunState.TRAINING, RunState.EXCHANGING})
ENDED = frozenset(state for state in RunState if state.ended)
_PAUSABLE = frozenset(RunState) - ENDED - {RunState.CREATED}

_NEXT = {
    RunState.CREATED: "Open it first.",
    RunState.OPEN: "Start it to begin round 1.",
    RunState.TRAINING: "Its round goes on until the updates are in; check its state again later.",
    RunState.EXCHANGING: "Its round goes on until the updates are in; check its state again later.",
    RunState.AGGREGATING: "Its round is being aggregated; check its state again later.",
    RunState.FINISHED: "It has ended; create another run.",
    RunState.CANCELLED: "It has ended; create another run.",
}


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What the state machine decides from: no member, no file; `round` is 0 before the start."""

    state: RunState
    paused: bool
    round: int
    rounds: int


def opened(status: RunStatus) -> RunStatus:
    """Members can now see the run's initial adapter."""
    _require(status, {RunState.CREATED}, "open")
    return replace(status, state=RunState.OPEN)


def started(status: RunStatus) -> RunStatus:
    _require(status, {RunState.OPEN}, "start")
    return replace(status, state=RunState.TRAINING, round=1)


def exchange_began(status: RunStatus) -> RunStatus:
    """The first client of a public step has sent its responses."""
    _require(status, ROUND_UNDER_WAY, "exchange in")
    return replace(status, state=RunState.EXCHANGING)


def exchange_ended(status: RunStatus) -> RunStatus:
    """The last open exchange is closed."""
    _require(status, {RunState.EXCHANGING}, "end an exchange in")
    return replace(status, state=RunState.TRAINING)


def updates_closed(status: RunStatus) -> RunStatus:
    """The round takes no more updates."""
    _require(status, ROUND_UNDER_WAY, "aggregate")
    return replace(status, state=RunState.AGGREGATING)


def aggregated(status: RunStatus) -> RunStatus:
    """The round's adapter is published: the next round begins, or the run is finished."""
    _require(status, {RunState.AGGREGATING}, "publish a round of")
    if status.round == status.rounds:
        return replace(status, state=RunState.FINISHED, paused=False)
    return replace(status, state=RunState.TRAINING, round=status.round + 1)


def reopened(status: RunStatus) -> RunStatus:
    """An update of the closed round was lost: the round takes updates again."""
    _require(status, {RunState.AGGREGATING}, "reopen a round of")
    return replace(status, state=RunState.TRAINING)


def reconsidered(status: RunStatus) -> RunStatus:
    """An update of the round is left out. If the round was closed, it takes updates again."""
    _require(status, ROUND_UNDER_WAY | {RunState.AGGREGATING}, "leave out an update of")
    if status.state is not RunState.AGGREGATING:
        return status
    return replace(status, state=RunState.TRAINING)


def rolled_back(status: RunStatus, to: int) -> RunStatus:
    """The round after `to` begins again, and everything since is forgotten."""
    _require(status, ROUND_UNDER_WAY | {RunState.AGGREGATING}, "roll back")
    if not 0 <= to < status.round:
        raise WrongState(
            f"Round {status.round} is under way; roll back to a round from 0 to {status.round - 1}."
        )
    return replace(status, state=RunState.TRAINING, round=to + 1)


def paused(status: RunStatus) -> RunStatus:
    _require(status, _PAUSABLE, "pause")
    return replace(status, paused=True)


def resumed(status: RunStatus) -> RunStatus:
    _require(status, _PAUSABLE, "resume")
    return replace(status, paused=False)


def cancelled(status: RunStatus) -> RunStatus:
    """The run ends for good; its adapters so far are kept."""
    _require(status, frozenset(RunState) - ENDED, "cancel")
    return replace(status, state=RunState.CANCELLED, paused=False)


def _require(status: RunStatus, allowed: Set[RunState], verb: str) -> None:
    if status.state not in allowed:
        raise WrongState(f"Cannot {verb} a run that is {status.state}. {_NEXT[status.state]}")
