"""How long a round will take and what will be sent, from one timed step."""

from dataclasses import dataclass

from pubswap_protocol.command_line.amounts import duration_text, size_text
from pubswap_protocol.schedule import private_steps_per_round, public_steps_per_round
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout

_BYTES_PER_TOKEN = 8  # its id and its log-probability
_BYTES_PER_RESPONSE = 5  # its length, and whether it is a peer's


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What one private step took, in seconds, and what came of it."""

    rollout_seconds: float
    reward_seconds: float
    update_seconds: float
    response_tokens: float  # mean
    cut_share: float  # responses that were stopped by max_response_tokens
    reward: float
    memory_bytes: int  # see StepMetrics

    @property
    def seconds(self) -> float:
        return self.rollout_seconds + self.reward_seconds + self.update_seconds


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one round: seconds of our own work, without waiting for peers, and bytes."""

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
    trial: TrialResult,
    run: RunSettings,
    layout: AdapterLayout,
    holdout: int = 0,
    own: RunSettings | None = None,
) -> Prediction:
    """Public steps sample as private ones do and verify twice: before and after the exchange.

    Each way goes one adapter, and a file of b K responses for each public step. Each of `holdout`
    problems is answered once a round. `own` has the member's b and K, of the trial.
    """
    public = public_steps_per_round(run)
    responses, tried = (
        each.grpo.prompts_per_step * each.grpo.responses_per_prompt for each in (run, own or run)
    )
    file = responses * (_BYTES_PER_TOKEN * trial.response_tokens + _BYTES_PER_RESPONSE)
    sent = layout.file_bytes + round(public * file)
    return Prediction(
        private_steps=private_steps_per_round(run),
        public_steps=public,
        private_seconds=trial.seconds,
        public_seconds=responses / tried * (trial.seconds + trial.reward_seconds),
        bytes_up=sent,
        bytes_down=sent,
        rounds=run.rounds,
        held_out_seconds=holdout / tried * (trial.rollout_seconds + trial.reward_seconds),
    )
