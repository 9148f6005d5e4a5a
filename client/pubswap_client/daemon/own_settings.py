"""A member's own prompts, responses, rank and steps, at most the run's; and its deadline."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pubswap_client.data.holdout import split
from pubswap_client.settings import ClientSettings
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.errors import InvalidProblems, InvalidSettings
from pubswap_protocol.problems import Problem
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


def trained_problems(
    problems: Sequence[Problem], client: ClientSettings, run: RunSettings
) -> tuple[list[Problem], list[Problem]]:
    """The problems that a member trains on, and those that it holds out.

    Raises InvalidProblems if a private step takes more of them.
    """
    trained, held_out = split(problems, client.holdout)
    needed = own_settings(client, run).grpo.prompts_per_step
    if len(trained) < needed:
        besides = f" besides {len(held_out)} held-out ones" if held_out else ""
        raise InvalidProblems(
            f"{client.data} holds {len(trained)} problems{besides}; a step takes {needed} "
            "different ones."
        )
    return trained, held_out


def own_rank(client: ClientSettings, run: RunSettings) -> int | None:
    """The member's rank if it is not the run's; raises InvalidSettings if the run refuses it."""
    rank, limit = client.rank, run.lora.rank
    if rank is None or rank == limit:
        return None
    lowest = run.min_rank or limit
    if not lowest <= rank <= limit:
        takes = f"the rank {limit}" if lowest == limit else f"ranks from {lowest} to {limit}"
        raise InvalidSettings(f"rank = {rank} is not allowed: the run takes {takes} (lora.rank).")
    return rank


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """A member's own limit on a round; without one it makes all steps."""

    steps: int | None = None

    @classmethod
    def of(cls, client: ClientSettings, run: RunSettings) -> Self:
        """The client's limit; raises InvalidSettings for one that the run does not allow."""
        steps, fewest = client.round_steps, run.members.fewest_steps
        if steps is None:
            return cls()
        if fewest is None:
            raise InvalidSettings(
                f"round_steps is for runs that accept fewer steps, but this one accepts only "
                f"updates of all {run.local_steps}. Leave it unset, or ask the operator for a run "
                "with members.fewest_steps."
            )
        if steps < fewest:
            raise InvalidSettings(
                f"round_steps = {steps} is below {fewest}, the fewest local steps that the run "
                f"accepts (members.fewest_steps); use {fewest} to {run.local_steps}."
            )
        return cls(steps)

    def over(self, done: Sequence[StepMetrics]) -> bool:
        """Whether the round ends after these steps, including those of earlier processes."""
        return self.steps is not None and len(done) >= self.steps


@dataclass
class Deadline:
    """The time by which a process ends by itself, before a scheduler ends it.

    It is `over` once another step may not fit, which is assumed to take as long as the longest of
    the round, without waits for peers: interrupting a wait loses nothing, and if waits counted,
    after one longer than a job each job would make only one step. `until_stopped` interrupts
    whatever still runs when the time is up: a wait, or a step that took longer.
    """

    end: float = math.inf  # a time of time.monotonic()
    over: bool = False  # at first, because every process makes a step if it can

    def look(self, done: Sequence[StepMetrics]) -> None:
        """Decide after a step, the last of these of its round."""
        self.over = time.monotonic() + max(step.seconds for step in done) > self.end
