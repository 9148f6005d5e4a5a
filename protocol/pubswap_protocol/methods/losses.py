"""Aggregations of the tokens' losses: the coefficients c of L = -sum_t c_t J_t.

Tensors are torch's; only their own methods are used, because this package does not import torch.
"""

from typing import Any, ClassVar

from pubswap_protocol.methods.registry import Registrable, Registry

Tensor = Any


class LossAggregation(Registrable):
    """The coefficients of the tokens in the loss."""

    separable: ClassVar[bool] = True
    """Whether a prompt's coefficients are independent of the others', as privacy requires."""

    def coefficients(self, mask: Tensor, longest: int) -> Tensor:
        """The coefficients (B, T) for a response mask (B, T) of the step's whole batch.

        `longest` is the run's grpo.max_response_tokens.
        """
        raise NotImplementedError


LOSS_AGGREGATIONS = Registry[LossAggregation]("loss aggregation", default="sequence_mean")


@LOSS_AGGREGATIONS.register
class SequenceMean(LossAggregation):
    """c = 1 / (B |y|): the mean over responses of the mean over their tokens (the paper).

    A token of a long response counts less, so long wrong responses are punished less.
    """

    name = "sequence_mean"

    def coefficients(self, mask: Tensor, longest: int) -> Tensor:
        weights = mask.float()
        return weights / weights.sum(dim=1, keepdim=True) / len(weights)


@LOSS_AGGREGATIONS.register
class TokenMean(LossAggregation):
    """c = 1 / (number of response tokens): the mean over all tokens of the step (DAPO).

    Long responses count more.
    """

    name = "token_mean"
    separable = False

    def coefficients(self, mask: Tensor, longest: int) -> Tensor:
        weights = mask.float()
        return weights / weights.sum()


@LOSS_AGGREGATIONS.register
class Constant(LossAggregation):
    """c = 1 / (B L), L = grpo.max_response_tokens: no bias by length (Dr. GRPO, Liu et al., 2025).

    Most responses are shorter than L, so the loss is smaller than the mean's.
    """

    name = "constant"

    def coefficients(self, mask: Tensor, longest: int) -> Tensor:
        weights = mask.float()
        return weights / (len(weights) * longest)
