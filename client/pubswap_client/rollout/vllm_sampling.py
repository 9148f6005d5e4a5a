"""Sampling parameters for the vLLM engines, and checks of their responses."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pubswap_client.rollout.transformers_engine import SamplingParameters
from pubswap_protocol.draws import response_seed
from pubswap_protocol.errors import EngineFault, InvalidSettings
from pubswap_protocol.model import ModelCard
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import Response

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Below this, vLLM samples at this temperature instead, and notes it only in its log.
LOWEST_TEMPERATURE = 0.01


def lora_rank(rank: int) -> int:
    """The smallest of vLLM's maximum ranks that fits `rank`. Raises InvalidSettings if none."""
    for allowed in LORA_RANKS:
        if rank <= allowed:
            return allowed
    raise InvalidSettings(f"vLLM serves adapters up to rank {LORA_RANKS[-1]}, not {rank}.")


def sampling_parameters(
    card: ModelCard, sampling: SamplingParameters, prompt: int
) -> dict[str, Any]:
    """vLLM's sampling parameters for the responses to prompt number `prompt`.

    Plain sampling at the temperature. Everything else is turned off by name, because a server takes
    omitted parameters from the model's generation config. Exactly the card's end-of-sequence tokens
    end a response. Raises InvalidSettings for a temperature that vLLM would not use.
    """
    if sampling.temperature < LOWEST_TEMPERATURE:
        raise InvalidSettings(
            f"vLLM samples at temperature {LOWEST_TEMPERATURE} or above, but the run has "
            f"{sampling.temperature}. Use engine = 'transformers'."
        )
    return {
        "n": sampling.count,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": response_seed(sampling.seed, prompt, 0),
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": list(card.eos_token_ids),
        "ignore_eos": True,  # the card's tokens, listed above, end a response, not the tokenizer's
        "skip_special_tokens": False,
        "logprobs": 0,  # of the sampled token alone
    }


def checked_response(
    tokens: Sequence[int], logprobs: Sequence[float | None], form: ResponseForm
) -> Response:
    """Convert vLLM's response (T,) for the trainer.

    Raises EngineFault unless there is one finite log-probability for each token, and the tokens
    have the form of a response.
    """
    ids = np.asarray(tokens, dtype=np.int32)
    values = np.array([np.nan if value is None else value for value in logprobs], np.float32)
    if len(ids) != len(values):
        raise EngineFault(f"vLLM gave {len(ids)} tokens but {len(values)} log-probabilities.")
    if not len(ids):
        raise EngineFault("vLLM gave a response without tokens.")
    if not np.isfinite(values).all():
        raise EngineFault("vLLM gave a log-probability that is not finite.")
    if fault := form.fault(ids, np.array([len(ids)])):
        raise EngineFault(
            f"vLLM gave {len(ids)} tokens that are no response. {fault} Is its --max-model-len at "
            "least grpo.max_prompt_tokens + grpo.max_response_tokens?"
        )
    return Response(tokens=ids, logprobs=values)
