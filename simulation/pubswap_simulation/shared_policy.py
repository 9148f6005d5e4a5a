"""Taking turns: the members share one model, and each has LoRA factors of its own.

Whoever computes holds the turn; whoever waits for its peers does not. The order of turns changes
no result: every draw is a function of (seed, client, round, step), and nothing else is shared.
"""

import threading
from collections.abc import Callable, Sequence
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from pubswap_protocol.tensors.adapter import AdapterFile


class Stopped(BaseException):
    """The simulation ends; not an Exception, so that no member tries again or goes on."""


if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy
    from pubswap_client.training.trainer import LocalTrainer


class Turns:
    """Whose turn it is at the shared policy."""

    def __init__(self, policy: "Policy") -> None:
        self._policy = policy
        self._lock = threading.Lock()
        self._seated: Seat | None = None
        self._rebased: tuple[str, ...] = ()
        self._stopped = False

    def seat(self) -> "Seat":
        """A place for one more member, with the factors as they are now."""
        return Seat(self, [factor.detach().clone() for factor in self._policy.factors()])

    def stop(self) -> None:
        """Nobody's turn comes any more; the one under way goes on to its end."""
        self._stopped = True

    def take(self, seat: "Seat") -> None:
        """Wait for the turn, and put the member's factors and residuals into the policy."""
        self._lock.acquire()
        if self._stopped:
            self._lock.release()
            raise Stopped
        if self._seated is not seat:
            for factor, own in zip(self._policy.factors(), seat.factors, strict=True):
                factor.data = own  # trained in place from now on
            self._seated = seat
        wanted = tuple(stack.path.name for stack in seat.residuals)
        if wanted != self._rebased:
            self._policy.rebase(seat.residuals)
            self._rebased = wanted

    def give(self) -> None:
        """The turn is over."""
        self._lock.release()


class Seat:
    """One member's place: inside it, a context manager, the policy is this member's own."""

    def __init__(self, turns: Turns, factors: list[Any]) -> None:
        self._turns = turns
        self.factors = factors
        self.residuals: Sequence[AdapterFile] = ()

    def __enter__(self) -> Self:
        self._turns.take(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turns.give()


class _InTurns:
    """A trainer each of whose methods is one turn, those included that it will have one day."""

    def __init__(self, trainer: "LocalTrainer", seat: Seat) -> None:
        self._trainer = trainer
        self._seat = seat

    def rebase(self, residuals: Sequence[AdapterFile]) -> None:
        """Done when this member's turn comes, and again if others' base models came between."""
        self._seat.residuals = residuals

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._trainer, name)
        return in_turns(found, self._seat) if callable(found) else found


def trainer_in_turns(trainer: "LocalTrainer", seat: Seat) -> "LocalTrainer":
    """The trainer for a member that shares its policy with others."""
    return cast("LocalTrainer", _InTurns(trainer, seat))


def in_turns(work: Callable[..., Any], seat: Seat) -> Callable[..., Any]:
    """The function, each call of which is one turn."""

    @wraps(work)
    def turn(*args: Any, **kwargs: Any) -> Any:
        with seat:
            return work(*args, **kwargs)

    return turn
