"""A member's own prompts, responses, rank and steps, at most the run's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pubswap_client.settings import ClientSettings
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.settings import RunSettings


def own_settings(client: ClientSettings, run: RunSettings) -> RunSettings:
    """The settings of a member's private steps: the run's, with the member's own b and K.

    Raises InvalidSettings if one is above the run's.
    """
    overrides = {
        name: value
        for name in ("prompts_per_step", "responses_per_prompt")
        if (value := getattr(client, name)) is not None
    }
    for name, value in overrides.items():
        if value > (limit := getattr(run.grpo, name)):
            raise InvalidSettings(
                f"{name} = {value} is above the run's grpo.{name} = {limit}; a member may have "
                "less."
            )
    return run.model_copy(update={"grpo": run.grpo.model_copy(update=overrides)})


def own_rank(client: ClientSettings, run: RunSettings) -> int | None:
    """The member's rank if it is not the run's; raises InvalidSettings if the run refuses it."""
    rank, limit = client.rank, run.lora.rank
    if rank is None or rank == limit:
        return None
    lowest = run.lora.min_rank or limit
    if not lowest <= rank <= limit:
        takes = f"the rank {limit}" if lowest == limit else f"ranks from {lowest} to {limit}"
        raise InvalidSettings(f"rank = {rank} is not allowed: the run takes {takes} (lora.rank).")
    return rank


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """A member's own limits on a round; without any it makes all steps."""

    fewest: int = 1
    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, client: ClientSettings, run: RunSettings) -> Self:
        """The client's limits; raises InvalidSettings for ones that the run does not allow."""
        steps, fewest = client.round_steps, run.members.fewest_steps
        if steps is None and client.round_seconds is None:
            return cls()
        if fewest is None:
            raise InvalidSettings(
                f"round_steps and round_seconds are for runs that accept fewer steps, but this one "
                f"accepts only updates of all {run.local_steps}. Leave them unset, or ask the "
                "operator for a run with members.fewest_steps."
            )
        if client.round_seconds is not None and run.privacy.epsilon is not None:
            raise InvalidSettings(
                "With round_seconds the number of steps reveals how long private prompts took, "
                "which privacy.epsilon does not account for; use round_steps."
            )
        if steps is not None and steps < fewest:
            raise InvalidSettings(
                f"round_steps = {steps} is below {fewest}, the fewest local steps that the run "
                f"accepts (members.fewest_steps); use {fewest} to {run.local_steps}."
            )
        return cls(fewest, steps, client.round_seconds)

    def over(self, done: Sequence[StepMetrics]) -> bool:
        """Whether the round ends after these steps, including those of earlier processes."""
        if len(done) < self.fewest:
            return False
        spent = sum(step.seconds + step.waited for step in done)
        enough = self.steps is not None and len(done) >= self.steps
        return enough or (self.seconds is not None and spent >= self.seconds)
