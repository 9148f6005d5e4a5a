"""Clippings of the importance ratio rho = pi_theta / pi_old in the GRPO objective.

Tensors are torch's; only their own methods are used, because this package does not import torch.
"""

from typing import Any, ClassVar

from pydantic import Field

from pubswap_protocol.bounds import Decay, Factor
from pubswap_protocol.methods.registry import Registrable, Registry

Tensor = Any
Sequences = Any  # a tensor, or None unless by_sequence

# Bounds the exponents: exp(20) is far outside the clip range, and its square is still finite.
LOG_RATIO_LIMIT = 20.0


class Clipping(Registrable):
    """S = min(rho A, clip(rho, 1 - low, 1 + high) A), for a ratio rho of each token."""

    by_sequence: ClassVar[bool] = False
    """Whether a response's tokens must be scored together, with `sequences`."""

    low: Decay
    high: Factor

    def log_ratio(self, logprobs: Tensor, old: Tensor, sequences: Sequences) -> Tensor:
        """log rho of each token, from the log-probabilities and each token's response's number."""
        return logprobs - old

    def surrogate(
        self, logprobs: Tensor, old: Tensor, advantages: Tensor, sequences: Sequences
    ) -> tuple[Tensor, Tensor]:
        """S of each token, and where the clip stops its gradient; all of one shape."""
        ratio = exp(self.log_ratio(logprobs, old, sequences))
        bounded = ratio.clamp(1 - self.low, 1 + self.high)
        surrogate = (ratio * advantages).minimum(bounded * advantages)
        over = (ratio > 1 + self.high) & (advantages > 0)
        under = (ratio < 1 - self.low) & (advantages < 0)
        return surrogate, over | under


CLIPPINGS = Registry[Clipping]("clipping", default="token")


@CLIPPINGS.register
class TokenClipping(Clipping):
    """Each token's own ratio (the paper, PPO)."""

    name = "token"

    low: Decay = Field(default=0.2, description="Ratios are clipped at 1 - low.")
    high: Factor = Field(default=0.25, description="Ratios are clipped at 1 + high.")


@CLIPPINGS.register
class SequenceClipping(Clipping):
    """The geometric mean of the ratios over a response (GSPO, Zheng et al., 2025).

    rho_t = exp(mean of log rho over the response), with the gradient of the token alone. It is far
    closer to 1 than a token's ratio, so the bounds are much smaller: the defaults are GSPO's.
    """

    name = "sequence"
    by_sequence = True

    low: Decay = Field(default=3e-4, description="Ratios are clipped at 1 - low.")
    high: Factor = Field(default=4e-4, description="Ratios are clipped at 1 + high.")

    def log_ratio(self, logprobs: Tensor, old: Tensor, sequences: Sequences) -> Tensor:
        difference = (logprobs - old).detach()
        return response_means(difference, sequences) + (logprobs - logprobs.detach())


def response_means(values: Tensor, sequences: Tensor) -> Tensor:
    """For each token (n,), the mean over its response, all of whose tokens must be present."""
    lengths = sequences.bincount()
    sums = values.new_zeros(len(lengths)).index_add(0, sequences, values)
    return sums[sequences] / lengths[sequences]


def exp(difference: Tensor) -> Tensor:
    """exp of a difference of log-probabilities, bounded so that it stays finite."""
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
