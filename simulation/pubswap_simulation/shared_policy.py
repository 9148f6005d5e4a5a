"""One policy for all members, who take turns, each with LoRA factors of its own.

A member holds the turn while it computes, but not while it waits for its peers. The order of turns
does not change results, because every draw is a function of (seed, client, round, step) and nothing
else is shared.
"""

import threading
from functools import wraps
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy
    from pubswap_client.training.trainer import LocalTrainer


class Stopped(BaseException):
    """The simulation is ending; not an Exception, so that no member retries or carries on."""


class SharedPolicy:
    """A policy, and the member whose factors are in it."""

    def __init__(self, policy: "Policy") -> None:
        self.policy = policy
        self.lock = threading.Lock()
        self.stopped = False
        self._loaded: MemberTurn | None = None

    def member(self) -> "MemberTurn":
        """Add a member, whose factors start as they are now."""
        return MemberTurn(self, [factor.detach().clone() for factor in self.policy.factors()])

    def stop(self) -> None:
        """Give no member another turn; the turn under way may finish."""
        self.stopped = True

    def load(self, member: "MemberTurn") -> None:
        """Put a member's factors into the policy."""
        if self._loaded is not member:
            for factor, member_factor in zip(self.policy.factors(), member.factors, strict=True):
                factor.data = member_factor  # trained in place from now on
            self._loaded = member


class MemberTurn:
    """A member's turn, a context manager: inside it, the policy has this member's factors."""

    def __init__(self, shared: SharedPolicy, factors: list[Any]) -> None:
        self._shared = shared
        self.factors = factors

    def __enter__(self) -> Self:
        self._shared.lock.acquire()
        if self._shared.stopped:
            self._shared.lock.release()
            raise Stopped
        self._shared.load(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.lock.release()


class _TrainerInTurns:
    """A trainer whose every method call is one turn, including methods added in future."""

    def __init__(self, trainer: "LocalTrainer", turn: MemberTurn) -> None:
        self._trainer = trainer
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._trainer, name)
        if not callable(value):
            return value

        @wraps(value)
        def in_turn(*args: Any, **kwargs: Any) -> Any:
            with self._turn:
                return value(*args, **kwargs)

        return in_turn


def trainer_in_turns(trainer: "LocalTrainer", turn: MemberTurn) -> "LocalTrainer":
    """The trainer of a member that shares its policy with others."""
    return cast("LocalTrainer", _TrainerInTurns(trainer, turn))
