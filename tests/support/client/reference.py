"""The plain reference for every fast path: padded, unshared, whole logits.

It is slow and easy to read: all rows as one rectangle through the model as transformers runs it,
and a softmax over whole logits, differentiated by autograd.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pubswap_client.policy.groups import Batch
from pubswap_client.policy.logprobs import Scores
from pubswap_client.policy.policy import Policy, positions
from pubswap_client.training.objective import Targets, fedprox_penalty, objective
from pubswap_protocol.methods.method import FedProx
from pubswap_protocol.settings import RunSettings


def rectangles(batch: Batch) -> tuple[Tensor, Tensor]:
    """Tokens (B, P + T) and their mask, with all prompts ending in the same column."""

    def padded(sequences: Sequence[Tensor], side: str) -> Tensor:
        return pad_sequence(list(sequences), batch_first=True, padding_side=side)

    def rows(prompts: Sequence[Tensor], responses: Sequence[Tensor]) -> Tensor:
        left_padded = padded(prompts, "left").repeat_interleave(batch.group_size, dim=0)
        return torch.cat([left_padded, padded(responses, "right")], dim=1)

    ones = ([torch.ones_like(each) for each in all_] for all_ in (batch.prompts, batch.responses))
    return rows(batch.prompts, batch.responses), rows(*ones)


def padded_scores(policy: Policy, batch: Batch, temperature: float) -> Scores:
    """Log-probabilities and entropies (B, T), 0 on padding, with gradients."""
    ids, mask = rectangles(batch)
    output = policy.model(
        input_ids=ids, attention_mask=mask, position_ids=positions(mask), use_cache=False
    )
    # The logits at a position predict the next token, so start at the last prompt token's.
    logits = output.logits[:, -batch.width - 1 : -1].float() / temperature
    everything = logits.log_softmax(dim=-1)
    tokens = ids[:, -batch.width :]
    logprobs = everything.gather(-1, tokens[..., None]).squeeze(-1)
    entropy = -(everything.exp() * everything).sum(dim=-1)
    padding = ~batch.response_mask
    return Scores(logprobs.masked_fill(padding, 0.0), entropy.masked_fill(padding, 0.0))


def padded_targets(
    batch: Batch, settings: RunSettings, old: Tensor, reference: Tensor | None
) -> Targets:
    """Targets that broadcast to (B, T)."""
    return Targets(
        advantages=batch.advantages[:, None],
        weights=settings.grpo.loss_aggregation.coefficients(
            batch.response_mask, settings.grpo.max_response_tokens
        ),
        old=old,
        donated=batch.donated[:, None],
        behaviour=batch.behaviour,
        reference=reference,
    )


def reference_update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    settings: RunSettings,
    round_start: Sequence[Tensor],
) -> list[tuple[float, list[Tensor]]]:
    """A plain update; returns each epoch's loss, and the gradients before clipping."""
    grpo = settings.grpo
    with torch.no_grad():
        with policy.reference():
            reference = padded_scores(policy, batch, grpo.temperature).logprobs
        old = padded_scores(policy, batch, grpo.temperature).logprobs
    targets = padded_targets(batch, settings, old, reference if grpo.kl_beta else None)
    epochs = []
    for _ in range(grpo.gradient_epochs):
        optimizer.zero_grad()
        scores = padded_scores(policy, batch, grpo.temperature)
        exchange = settings.exchange
        decoupled = exchange is not None and exchange.donor_ratio == "decoupled"
        loss = objective(scores.logprobs, targets, grpo, scores.entropy, decoupled=decoupled).total
        if isinstance(settings.method, FedProx):
            loss = loss + fedprox_penalty(policy.trainable(), round_start, settings.method.mu)
        loss.backward()
        factors = policy.trainable()
        epochs.append((loss.item(), [f.grad.clone() for f in factors if f.grad is not None]))
        torch.nn.utils.clip_grad_norm_(factors, grpo.max_grad_norm)
        optimizer.step()
    return epochs
