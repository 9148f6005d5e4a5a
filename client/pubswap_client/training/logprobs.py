"""Per-token log-probabilities of responses: the padded, plain reference."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pubswap_client.training.groups import Batch
from pubswap_client.training.policy import Policy
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings

MAX_LOGITS = 1 << 29


@dataclass(frozen=True, slots=True)
class Scores:
    """Of response tokens (B, T): log-probabilities, and entropies if asked; 0 on padding."""

    logprobs: Tensor
    entropy: Tensor | None = None


def token_scores(
    logits: Tensor, tokens: Tensor, temperature: float, entropy: bool = False
) -> Scores:
    """log p of `tokens` (B, T) under `logits` (B, T, V), in float32.

    With z = logits / temperature: log p(y) = z_y - logsumexp(z), H = logsumexp(z) - sum_v p_v z_v.
    """
    scaled = logits.float() / temperature
    normaliser = scaled.logsumexp(dim=-1)
    chosen = scaled.gather(-1, tokens[..., None]).squeeze(-1)
    if not entropy:
        return Scores(chosen - normaliser)
    mean = (scaled.softmax(dim=-1) * scaled).sum(dim=-1)
    return Scores(chosen - normaliser, normaliser - mean)


def score_rows(
    policy: Policy, batch: Batch, rows: slice, temperature: float, entropy: bool = False
) -> Scores:
    """The scores (rows, T) of some rows of a batch in one forward pass, with gradients.

    Columns that are padding in all of these rows are left out of the pass, so that memory and
    time follow the longest prompt and response of the rows, not of the batch.
    """
    mask = batch.attention_mask[rows]
    prompts = mask.shape[1] - batch.width
    begin = prompts - int(mask[:, :prompts].sum(dim=1).max())
    length = int(mask[:, prompts:].sum(dim=1).max())
    tokens = batch.input_ids[rows, prompts : prompts + length]
    logits = policy.logits(
        batch.input_ids[rows, begin : prompts + length],
        mask[:, begin : prompts + length],
        keep=length + 1,
    )
    # The logits at a position are about the next token: the last prompt token's come first.
    scores = token_scores(logits[:, :-1], tokens, temperature, entropy)
    padding = ~batch.response_mask[rows, :length]

    def padded(values: Tensor) -> Tensor:
        values = values.masked_fill(padding, 0.0)
        return functional.pad(values, (0, batch.width - length))

    return Scores(
        padded(scores.logprobs), None if scores.entropy is None else padded(scores.entropy)
    )


def micro_batches(rows: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` rows that cover 0..rows."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def default_rows(settings: RunSettings, card: ModelCard) -> int:
    """Rows of a micro-batch that hold at most half a billion logits (2 GiB in float32), 1 to 64."""
    logits_of_a_row = settings.grpo.max_response_tokens * card.vocabulary
    return max(1, min(64, MAX_LOGITS // logits_of_a_row))


@torch.no_grad()
def response_logprobs(policy: Policy, batch: Batch, temperature: float, rows: int) -> Tensor:
    """Log-probabilities (B, T) of a batch's responses, `rows` at a time, without gradients."""
    parts = [
        score_rows(policy, batch, part, temperature).logprobs
        for part in micro_batches(batch.rows, rows)
    ]
    return torch.cat(parts)
