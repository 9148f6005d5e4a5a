"""Does the packed path compute what the model itself computes? Asked once, of each loaded model.

An architecture may do something that the packed path does not know of (scaled logits, attention
sinks, a position bias), and a GPU's kernels may align masks in another way. Wrong gradients would
pass unnoticed; two tiny forward passes do not.
"""

import logging

import torch
from torch import Tensor

from pubswap_client.training.groups import Group, collate
from pubswap_client.training.logprobs import response_logprobs, token_scores
from pubswap_client.training.policy import Policy
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.responses import Response

log = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
PROMPT, LENGTHS = 5, (7, 1, 3)


def check_packed_path(policy: Policy) -> float:
    """The largest difference in nats; raises InvalidSettings if packs do not give the model's own.

    On a GPU the portable attention is taken instead of the flash one if that alone differs.
    """
    difference = packed_difference(policy)
    limit = TOLERANCE[policy.dtype]
    if not difference <= limit and not policy.portable:
        log.warning("Flash attention is off by %.3g here; going on without it.", difference)
        policy.portable = True
        difference = packed_difference(policy)
    if not difference <= limit:
        raise InvalidSettings(
            f"{policy.card.architecture} cannot be trained yet: log-probabilities in packs differ "
            f"from the model's own by up to {difference:.3g} (at most {limit} is allowed). Use a "
            "Qwen, Llama or Mistral model, or tell us which model it was."
        )
    return difference


@torch.no_grad()
def packed_difference(policy: Policy) -> float:
    """The largest difference of any response token's log-probability, by the two paths."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> Tensor:
        return torch.randint(policy.card.vocabulary, (count,), generator=generator)

    prompt = tokens(PROMPT)
    responses = [tokens(length) for length in LENGTHS]
    wanted = [_plain(policy, prompt, response) for response in responses]
    group = Group(
        prompt.tolist(),
        [Response(r.int().numpy(), w.numpy()) for r, w in zip(responses, wanted, strict=True)],
        [0.0] * len(responses),
    )
    batch = collate([group], eos_token_ids=(), advantage_epsilon=1e-6)
    found = response_logprobs(policy, batch, temperature=1.0, budget=1 << 20)
    return float((found - batch.behaviour).abs().max())


def _plain(policy: Policy, prompt: Tensor, response: Tensor) -> Tensor:
    """The log-probabilities (T,) of one response, as transformers computes them."""
    ids = torch.cat([prompt, response])[None].to(policy.device)
    logits = policy.model(input_ids=ids, use_cache=False).logits[0]
    first = len(prompt) - 1
    return token_scores(logits[first:-1], ids[0, first + 1 :], temperature=1.0).cpu()
