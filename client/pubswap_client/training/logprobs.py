"""Per-token log-probabilities of responses, over packs and without whole logits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pubswap_client.training.groups import Batch
from pubswap_client.training.linear_logprobs import linear_logprobs
from pubswap_client.training.packing import Pack, pack, plan
from pubswap_client.training.policy import Policy


@dataclass(frozen=True, slots=True)
class Scores:
    """Of tokens, in any shape: log-probabilities, and entropies if asked."""

    logprobs: Tensor
    entropy: Tensor | None = None


def token_scores(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """log p of `tokens` (...) under `logits` (..., V), in float32.

    With z = logits / temperature: log p(y) = z_y - logsumexp(z).
    """
    scaled = logits.float() / temperature
    return scaled.gather(-1, tokens[..., None]).squeeze(-1) - scaled.logsumexp(dim=-1)


def score_pack(policy: Policy, pack: Pack, temperature: float, entropy: bool = False) -> Scores:
    """The scores (n,) of a pack's response tokens in one forward pass, with gradients.

    Inside `policy.packed()` only.
    """
    hidden = policy.hidden(pack.input_ids, pack.position_ids, pack.tree)[pack.predictors]
    return Scores(
        *linear_logprobs(hidden, *policy.head(), pack.tokens, temperature, entropy=entropy)
    )


@torch.no_grad()
def response_logprobs(policy: Policy, batch: Batch, temperature: float, budget: int) -> Tensor:
    """Log-probabilities (B, T) of a batch's responses on the CPU, 0 on padding.

    At most `budget` tokens are computed at a time.
    """
    found = torch.zeros_like(batch.behaviour)
    plans = plan(batch.prompt_lengths, batch.lengths, range(batch.rows), budget)
    with policy.packed():
        for rows in plans:
            part = pack(batch, rows, policy.device)
            found.view(-1)[part.places.cpu()] = score_pack(policy, part, temperature).logprobs.cpu()
    return found
