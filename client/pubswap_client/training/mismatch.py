"""How far the rollout engine's log-probabilities are from the trainer's own.

Both compute the same policy, so what remains is rounding. A larger difference says that the
engine samples from another policy: it serves an old adapter, another base model, or reports
log-probabilities at another temperature. GRPO would go on without a word, on a wrong ratio.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from pubswap_protocol.errors import StaleAdapter

log = logging.getLogger(__name__)

# Nats a token. Measured on the demo's model: 1e-6 in float32 on both sides, 0.011 with bfloat16 in
# the engine alone, 0.07 for log-probabilities before a temperature of 0.7, 0.5 for another
# adapter. On larger models bfloat16 alone gives 0.017 to 0.035. An adapter that is one small step
# old is hidden in that (0.008 to 0.04): against it there are the names and digests of hot reload.
UNUSUAL = 0.05
# Large models' logits reach 32, where a float is rounded by 8 times its type's epsilon. So are the
# engine's and the trainer's, and before them what they are made from: four times in all.
ROUNDING = 4 * 8


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Over the tokens of a batch, in nats: |difference|, mean and maximum, and KL."""

    mean_abs: float
    max_abs: float
    kl: float


def measure(trainer: Tensor, engine: Tensor, mask: Tensor) -> Mismatch:
    """The mismatch of log-probabilities (B, T) of tokens that the engine sampled.

    KL(engine || trainer) is estimated by the mean over the mask's tokens of
    k3 = r - 1 - log r, r = p_trainer / p_engine, which is never negative. All 0 for an empty mask.
    """
    chosen = mask.bool()
    if not bool(chosen.any()):
        return Mismatch(0.0, 0.0, 0.0)
    difference = (trainer.detach().double() - engine.double())[chosen]
    k3 = torch.expm1(difference) - difference
    size = difference.abs()
    return Mismatch(float(size.mean()), float(size.max()), float(k3.mean()))


def rounding_limit(dtype: torch.dtype, temperature: float) -> float:
    """Nats a token that rounding cannot reach in the mean: 0.25 / temperature in bfloat16.

    In float32 it is what is unusual: an engine in bfloat16 beside such a trainer may be right.
    """
    return max(UNUSUAL, ROUNDING * torch.finfo(dtype).eps / temperature)


def check(mismatch: Mismatch, limit: float) -> None:
    """Warn of an unusual mean difference.

    Raises StaleAdapter if it is above `limit` nats, or is not a number.
    """
    if mismatch.mean_abs <= limit:
        if mismatch.mean_abs > UNUSUAL:
            log.warning(
                "The rollout engine's log-probabilities differ from the trainer's by %.3g nats a "
                "token (KL %.3g), which is much for rounding. If it stays so, see that the engine "
                "has the run's base model in the trainer's precision and reports log-probabilities "
                "after temperature.",
                mismatch.mean_abs,
                mismatch.kl,
            )
        return
    raise StaleAdapter(
        f"The rollout engine's log-probabilities differ from the trainer's by "
        f"{mismatch.mean_abs:.3g} nats a token (at most {limit:g} is allowed; the largest "
        f"difference is {mismatch.max_abs:.3g}, KL {mismatch.kl:.3g}). It serves another adapter, "
        "another base model, or log-probabilities before temperature: check the model it was "
        "started with and --logprobs-mode processed_logprobs. If only its precision is lower than "
        "bfloat16 (quantized weights), set a larger vllm.max_mismatch."
    )
