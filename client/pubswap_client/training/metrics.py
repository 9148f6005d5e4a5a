"""Metrics of one step: shown, tracked, saved in checkpoints and summed up for a round."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Metrics of one step. loss, kl, clip_share and grad_norm are means over its epochs."""

    loss: float
    kl: float
    clip_share: float  # share of tokens whose gradient the clip stops
    reward: float  # mean over own responses; over all if none is own
    zero_variance_share: float  # share of groups whose rewards are all equal
    response_tokens: float  # mean length
    tokens: int
    seconds: float
    grad_norm: float  # before clipping
    mismatch: float = 0.0  # mean |engine - trainer| log-probability of own tokens, in nats
    cut_share: float = 0.0  # share of responses that max_response_tokens cut off
    memory_bytes: int = 0  # the GPU's peak in this step, or the process's resident memory
    staleness: int = 0  # updates between sampling and this one, if pipelined
    sampling: float = 0.0  # seconds of `seconds` spent only on sampling and verification
    verifying: float = 0.0  # seconds of verification in a private step
    waited: float = 0.0  # seconds waited for other organisations, not included in `seconds`
    prompts_sampled: int = 0  # in a private step, including further draws
    exchange_refused: int = 0  # 1 if the exchange's answer was malformed, so all groups are our own
    groups_replaced: int = 0  # groups with equal rewards, replaced from further draws
    donated_tokens: int = 0  # trained on; the two fields below are about these
    donated_probability: float = 0.0  # mean, under our policy before the step
    donated_clip_share: float = 0.0  # as clip_share
    # By donor number: the count of its checked responses, and the evidence that they were not
    # drawn with their noise.
    donors: dict[str, list[float]] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Response tokens sampled and trained on, per second of the whole step."""
        return self.tokens / self.seconds if self.seconds else 0.0


def mean_of(values: Tensor) -> float:
    """The mean, or 0 if there are no values: a private draw may be empty."""
    return float(values.mean()) if values.numel() else 0.0
