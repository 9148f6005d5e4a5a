"""Predict the duration and traffic of a round from one timed step."""

from dataclasses import dataclass

from pubswap_client.daemon.own_settings import own_rank, own_settings
from pubswap_client.recipes.check import RESPONSE_TOKEN_BYTES
from pubswap_client.settings import ClientSettings
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.schedule import public_step_number, update_order
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout
from pubswap_protocol.tensors.ranks import at_rank
from pubswap_protocol.tensors.update_encoding import largest_update

_BYTES_PER_RESPONSE = 5  # its length, and the flag of donated ones


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one round: seconds of the member's own work, without waiting for peers, and bytes."""

    private_steps: int
    public_steps: int
    private_seconds: float  # one step
    public_seconds: float
    bytes_up: int
    bytes_down: int
    rounds: int
    held_out_seconds: float

    @property
    def round_seconds(self) -> float:
        private = self.private_steps * self.private_seconds
        return private + self.public_steps * self.public_seconds + self.held_out_seconds

    def __str__(self) -> str:
        steps = f"{self.private_steps} private steps of {duration_text(self.private_seconds)}"
        if self.public_steps:
            steps += f", {self.public_steps} public of {duration_text(self.public_seconds)}"
        if self.held_out_seconds:
            steps += f", held-out problems {duration_text(self.held_out_seconds)}"
        return (
            f"a round takes about {duration_text(self.round_seconds)} ({steps}; waiting for peers "
            f"comes on top) and sends {size_text(self.bytes_up)}, receives "
            f"{size_text(self.bytes_down)}; all {self.rounds} rounds: "
            f"{duration_text(self.rounds * self.round_seconds)}"
        )


def predict(
    trial: StepMetrics, run: RunSettings, layout: AdapterLayout, client: ClientSettings
) -> Prediction:
    """Predict a round from a trial step.

    Public steps never resample, and verify twice: before and after the exchange. Private steps have
    as many responses as are drawn on average. One adapter goes each way, and a file of b K
    responses for each public step. Each held-out problem is answered once a round.
    """
    steps = update_order(run)[: client.round_steps]
    public = sum(public_step_number(run, step) is not None for step in steps)
    own = own_settings(client, run).grpo
    responses, drawn = (
        grpo.prompts_per_step * grpo.responses_per_prompt for grpo in (run.grpo, own)
    )
    sampled = trial.prompts_sampled * own.responses_per_prompt or drawn
    trained = round(trial.tokens / max(1, trial.response_tokens)) or drawn
    verifying, updating = trial.verifying / sampled, (trial.seconds - trial.sampling) / trained
    sampling = trial.sampling / sampled - verifying
    file = responses * (RESPONSE_TOKEN_BYTES * trial.response_tokens + _BYTES_PER_RESPONSE)
    return Prediction(
        private_steps=len(steps) - public,
        public_steps=public,
        private_seconds=drawn / trained * trial.seconds,
        public_seconds=responses * (sampling + 2 * verifying + updating),
        bytes_up=_update_bytes(run, layout, client) + round(public * file),
        bytes_down=layout.file_bytes + round(public * file),
        rounds=run.rounds,
        held_out_seconds=client.holdout * (sampling + verifying),
    )


def _update_bytes(run: RunSettings, layout: AdapterLayout, client: ClientSettings) -> int:
    """The bytes of an update at the member's rank."""
    rank = own_rank(client, run)
    return largest_update(layout if rank is None else at_rank(layout, rank), run)
