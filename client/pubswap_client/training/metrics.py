"""What one step did: what is shown, tracked, kept in checkpoints and summed up for a round."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one step did. loss, kl, clip_share and grad_norm are means over its epochs."""

    loss: float
    kl: float
    clip_share: float  # share of tokens whose gradient the clip stops
    reward: float  # mean over own responses; over all if none is own
    zero_variance_share: float  # groups whose rewards are all equal
    response_tokens: float  # mean length
    tokens: int
    seconds: float
    grad_norm: float  # before clipping
    mismatch: float = 0.0  # engine's and trainer's log-probabilities of own tokens: mean, in nats
    memory_bytes: int = 0  # the GPU's peak in this step, or what the process holds
    staleness: int = 0  # updates between sampling and this one; pipelined or with an overlap
    sampling: float = 0.0  # seconds of `seconds` in which responses were sampled, nothing else
    waited: float = 0.0  # seconds for the other organisations, which are not in `seconds`
    prompts_sampled: int = 0  # of a private step, those of further draws included
    groups_replaced: int = 0  # by groups of further draws, as their rewards were all equal
    donated_tokens: int = 0  # of those trained on; the two below are of these
    donated_probability: float = 0.0  # mean, under the own policy before the step
    donated_clip_share: float = 0.0  # as clip_share
    # Of the donated responses of each donor, by its number: how many, and what speaks against them.
    donors: dict[str, list[float]] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Response tokens sampled and trained on, by the whole step's time."""
        return self.tokens / self.seconds if self.seconds else 0.0


def mean_of(values: Tensor) -> float:
    """The mean; 0 of nothing, which a private draw may be."""
    return float(values.mean()) if values.numel() else 0.0
