"""The evidence that responses were not sampled with the noise of their seeds.

Of a token y that was sent, with z the logits by our own policy, over the temperature, and g the
noise of its seed and position (see rollout/gumbel.py),

    margin m = max_i (z_i + g_i) - (z_y + g_y) >= 0,   p = softmax(z)_y,  q = 1 - p

Whoever draws y without regard to the noise has m = 0 with probability p, and else a difference of
two Gumbel variables, whose density is p q e^m / (q + p e^m)^2. The sampler of our own policy has
m = 0. One of a similar policy, whose logits differ by Laplace noise of scale s, has m = 0 with
probability 1 - s q / 2 and else the density q e^(-m/s) / 2, for a small s. The evidence is the
log-likelihood ratio of the two,

    evidence = sum_t log [other(m_t) / sampled(m_t)],

in nats: below 0 for sampled responses and above it for others. So that no single token decides,
`sampled` has a part of OTHERWISE of `other`. p is taken over the 64 likeliest tokens and y.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pubswap_client.policy.groups import Batch
from pubswap_client.policy.logprobs import Observe, plan_of, score_pack
from pubswap_client.policy.packing import Pack, pack
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.gumbel import gumbel_noise

LIKELIEST = 64
DRIFT = 0.5  # s: how far logits of the federation's policies are apart in the middle of a round
OTHERWISE = 0.01  # the share of honest tokens of which nothing is assumed
CERTAIN = 1e-6  # of p, what it is less than 1 by at least


@torch.no_grad()
def token_evidence(logits: Tensor, tokens: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """The evidence (n,) against `tokens` (n,), in nats, by logits / temperature (n, V)."""
    top, ids = logits.topk(min(LIKELIEST, logits.shape[1]), dim=1)
    z = logits.gather(1, tokens[:, None]).squeeze(1)
    total = top.logsumexp(dim=1)
    total = torch.where(z < top[:, -1], torch.logaddexp(total, z), total)
    log_p = (z - total).clamp_(max=-CERTAIN)
    log_q = torch.log(-torch.expm1(log_p))
    ids, values = torch.cat([ids, tokens[:, None]], dim=1), torch.cat([top, z[:, None]], dim=1)
    noised = values + gumbel_noise(seeds[:, None], positions[:, None], ids)
    margin = noised.amax(dim=1) - noised[:, -1]
    other = log_p + log_q + margin - 2 * torch.logaddexp(log_q, log_p + margin)
    sampled = log_q - math.log(2) - margin / DRIFT
    drawn = margin == 0
    other = torch.where(drawn, log_p, other)
    sampled = torch.where(drawn, torch.log1p(-DRIFT / 2 * log_q.exp()), sampled)
    least = torch.full_like(other, math.log(OTHERWISE))
    return -torch.logaddexp(sampled - other + math.log1p(-OTHERWISE), least)


class EvidenceTable:
    """The evidence against some rows of a batch, filled in while a pass goes over its packs."""

    def __init__(self, batch: Batch, rows: Iterable[int], device: torch.device) -> None:
        self._batch = batch
        self._rows = frozenset(rows)
        self._evidence = torch.zeros(batch.rows * batch.width, device=device)  # (B T,)

    @property
    def tensors(self) -> list[Tensor]:
        """What processes add up, and what a pass that begins again clears."""
        return [self._evidence] if self._rows else []

    def observer(self, part: Pack, rows: Sequence[int]) -> Observe | None:
        """What looks at the logits of a pack of these rows; None if none of them is looked at."""
        batch, end = self._batch, 0
        spans: list[tuple[int, int]] = []
        seeds, positions = [], []
        for row in rows:
            begin, end = end, end + batch.lengths[row]
            before = batch.prompt_lengths[row // batch.group_size] - 1
            seeds.append(batch.seeds[row].expand(end - begin))
            positions.append(torch.arange(before, before + end - begin))
            if row in self._rows:
                # Neighbours are looked at together.
                first = spans.pop()[0] if spans and spans[-1][1] == begin else begin
                spans.append((first, end))
        if not spans:
            return None
        seed, position = (torch.cat(values).to(part.tokens.device) for values in (seeds, positions))

        def observe(place: slice, logits: Tensor) -> None:
            for begin, end in spans:
                some = slice(max(begin, place.start), min(end, place.stop))
                if some.start < some.stop:
                    inside = logits[some.start - place.start : some.stop - place.start]
                    self._evidence[part.indices[some]] = token_evidence(
                        inside, part.tokens[some], seed[some], position[some]
                    )

        return observe

    def sums(self) -> Tensor:
        """The evidence against each row (B,), on the CPU; 0 for rows not looked at."""
        return self._evidence.cpu().double().view(self._batch.rows, -1).sum(dim=1)

    def by_donor(self) -> dict[str, list[float]]:
        """Of the rows that were looked at, by their donors: how many, and the evidence."""
        if not self._rows:
            return {}
        evidence, donors = self.sums(), self._batch.donors
        found: dict[str, list[float]] = {}
        for donor in sorted({int(donors[row]) for row in self._rows}):
            rows = [row for row in self._rows if donors[row] == donor]
            found[str(donor)] = [len(rows), float(evidence[rows].sum())]
        return found


def response_evidence(policy: Policy, batch: Batch, temperature: float, budget: int) -> Tensor:
    """The evidence against each of a batch's responses (B,), on the CPU.

    At most `budget` tokens are computed at a time.
    """
    table = EvidenceTable(batch, range(batch.rows), policy.device)
    with torch.no_grad(), policy.packed():
        for rows in plan_of(policy, batch, range(batch.rows), budget):
            part = pack(batch, rows, policy.device)
            score_pack(policy, part, temperature, observe=table.observer(part, rows))
    return table.sums()
