"""The evidence that responses were not sampled with the noise of their seeds.

Of a token y that was sent, with z the logits by our own policy, over the temperature, and g the
noise of its seed and position (see rollout/gumbel.py),

    other(y) = softmax(z)_y,   sampled(y) = softmax((z + g) / s)_y

are the probabilities of drawing it without regard to the noise, and by the sampler of a similar
policy, whose logits differ by Gumbel noise of scale s. So that no single token decides, `sampled`
has a part of OTHERWISE of `other`. Who rewrites the end of a response has sampled its beginning;
where that ends is not known, so that all n + 1 places, also before the first token and after the
last one, are equally likely. The evidence against n tokens is the log-likelihood ratio

    evidence = log [1 / (n + 1) sum_{t=1}^{n+1} prod_{i=t}^{n} other(y_i) / sampled(y_i)],

in nats: below 0 for sampled responses and above it for others. Both are taken over the 64
likeliest tokens and y.
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
DRIFT = 0.3  # s: how far logits of the federation's policies are apart in the middle of a round
OTHERWISE = 0.03  # the share of honest tokens of which nothing is assumed


@torch.no_grad()
def token_evidence(logits: Tensor, tokens: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """log other / sampled (n,) of `tokens` (n,), in nats, by logits / temperature (n, V)."""
    sent = tokens[:, None]
    top, ids = logits.topk(min(LIKELIEST, logits.shape[1]), dim=1)
    top.masked_fill_(ids == sent, -torch.inf)  # it is counted once
    ids, values = torch.cat([sent, ids], dim=1), torch.cat([logits.gather(1, sent), top], dim=1)
    noised = values + gumbel_noise(seeds[:, None], positions[:, None], ids)
    other = values.log_softmax(dim=1)[:, 0]
    sampled = (noised / DRIFT).log_softmax(dim=1)[:, 0]
    least = torch.full_like(other, math.log(OTHERWISE))
    return -torch.logaddexp(sampled - other + math.log1p(-OTHERWISE), least)


class EvidenceTable:
    """The evidence against some rows of a batch, while a pass fills in that of their tokens."""

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
        lengths = torch.tensor(self._batch.lengths)[:, None]
        tokens = self._evidence.cpu().double().view(self._batch.rows, -1)
        ends = tokens.flip(1).cumsum(dim=1).flip(1)  # from each token on
        ends.masked_fill_(torch.arange(tokens.shape[1]) >= lengths, -torch.inf)
        none = torch.zeros(len(ends), 1, dtype=ends.dtype)  # after the last token
        return torch.cat([ends, none], dim=1).logsumexp(dim=1) - lengths[:, 0].log1p()

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
