"""Mismatch between the rollout engine's log-probabilities and the trainer's own.

Both compute the same policy, so only rounding should differ. A larger difference means that the
engine samples from another policy: it serves an old adapter or another base model, or reports
log-probabilities at another temperature. GRPO would silently continue with a wrong ratio.
"""

import logging

import torch
from torch import Tensor

from pubswap_client.training.metrics import mean_of
from pubswap_protocol.errors import StaleAdapter

log = logging.getLogger(__name__)

# Nats per token. Measured on the demo's model: 1e-6 in float32 on both sides, 0.011 with bfloat16
# in the engine alone, 0.07 for log-probabilities before a temperature of 0.7, 0.5 for another
# adapter. On larger models bfloat16 alone gives 0.017 to 0.035. That hides an adapter that is one
# small step old (0.008 to 0.04); the names and digests of hot reload catch it instead.
UNUSUAL = 0.05
# Large models' logits reach 32, where rounding errs by 8 times the float type's epsilon. Four such
# errors add up: in the engine's and the trainer's logits, and in the inputs of each.
ROUNDING = 4 * 8


def measure(trainer: Tensor, engine: Tensor, mask: Tensor) -> float:
    """Mean |difference| in nats of the log-probabilities of tokens that the engine sampled.

    Over the tokens of the mask; 0 if it has none.
    """
    return mean_of((trainer.detach().double() - engine.double())[mask.bool()].abs())


def rounding_limit(dtype: torch.dtype, temperature: float) -> float:
    """Mean nats per token that rounding cannot reach: 0.25 / temperature in bfloat16.

    In float32 it is UNUSUAL, because an engine in bfloat16 beside such a trainer may be correct.
    """
    return max(UNUSUAL, ROUNDING * torch.finfo(dtype).eps / temperature)


def check(mismatch: float, limit: float) -> None:
    """Warn of an unusual mismatch. Raises StaleAdapter above `limit` nats, or if it is NaN."""
    if mismatch <= limit:
        if mismatch > UNUSUAL:
            log.warning(
                "The rollout engine's log-probabilities differ from the trainer's by %.3g nats a "
                "token, which is a lot for rounding. If this persists, check that the engine has "
                "the run's base model in the trainer's precision and reports log-probabilities "
                "after temperature.",
                mismatch,
            )
        return
    raise StaleAdapter(
        f"The rollout engine's log-probabilities differ from the trainer's by {mismatch:.3g} nats "
        f"a token (at most {limit:g} is allowed). It serves another adapter, another base model, "
        "or log-probabilities before temperature: check the model it was "
        "started with and --logprobs-mode processed_logprobs. If only its precision is lower than "
        "bfloat16 (quantized weights), set a larger vllm.max_mismatch."
    )
