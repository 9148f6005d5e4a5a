"""How many of a round's local steps a member makes, where the run takes fewer than all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pubswap_client.settings import ClientSettings
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.settings import RunSettings


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """A member's own limits of a round; without any it makes all steps."""

    fewest: int = 1
    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, client: ClientSettings, run: RunSettings) -> Self:
        """Raises InvalidSettings for limits that the run does not allow."""
        steps, fewest = client.round_steps, run.members.fewest_steps
        if steps is None and client.round_seconds is None:
            return cls()
        if fewest is None:
            raise InvalidSettings(
                f"round_steps and round_seconds are for runs that take fewer steps, and this one "
                f"takes updates of all {run.local_steps}. Leave them unset, or ask the operator "
                "for a run with members.fewest_steps."
            )
        if client.round_seconds is not None and run.privacy.epsilon is not None:
            raise InvalidSettings(
                "With round_seconds the number of steps tells how long private prompts took, which "
                "privacy.epsilon does not account for; use round_steps."
            )
        if steps is not None and steps < fewest:
            raise InvalidSettings(
                f"round_steps = {steps} is below the {fewest} local steps that the run takes at "
                f"least (members.fewest_steps); use {fewest} to {run.local_steps}."
            )
        return cls(fewest, steps, client.round_seconds)

    def over(self, done: Sequence[StepMetrics]) -> bool:
        """Whether no further step is begun after these, also of earlier processes."""
        if len(done) < self.fewest:
            return False
        spent = sum(step.seconds + step.waited for step in done)
        enough = self.steps is not None and len(done) >= self.steps
        return enough or (self.seconds is not None and spent >= self.seconds)
