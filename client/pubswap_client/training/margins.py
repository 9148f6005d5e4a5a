"""How far responses are from being sampled with the noise of their seeds.

Of a token y that was sent, with z the logits by our own policy, over the temperature, and g the
noise of its seed and position (see rollout/gumbel.py),

    margin = max_i (z_i + g_i) - (z_y + g_y) >= 0,   expected = -sum_i p_i log p_i,  p = softmax(z)

The sampler of our own policy has margin 0, one of a slightly other policy nearly always. Whoever
draws y from p without regard to the noise has the entropy of p as his mean margin: E log sum exp(z)
- E z_y. So sum(margin) / sum(expected) is about 0 for sampled responses and about 1 for others,
whatever their length and however certain the policy is. Sums run over the 64 likeliest tokens.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pubswap_client.policy.groups import Batch
from pubswap_client.policy.logprobs import Observe, plan_of, score_pack
from pubswap_client.policy.packing import Pack, pack
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.gumbel import gumbel_noise

LIKELIEST = 64


@torch.no_grad()
def token_margins(
    logits: Tensor, tokens: Tensor, seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """The margins (n,) of `tokens` (n,), and what to expect of others, by logits / T (n, V)."""
    top, ids = logits.topk(min(LIKELIEST, logits.shape[1]), dim=1)
    logs = top.log_softmax(dim=1)
    expected = -(logs.exp() * logs).sum(dim=1)
    best = (top + gumbel_noise(seeds[:, None], positions[:, None], ids)).amax(dim=1)
    sent = logits.gather(1, tokens[:, None]).squeeze(1) + gumbel_noise(seeds, positions, tokens)
    return (best - sent).clamp_(min=0), expected


class MarginTable:
    """The margins of some rows of a batch, filled in while a pass goes over its packs."""

    def __init__(self, batch: Batch, rows: Iterable[int], device: torch.device) -> None:
        self._batch = batch
        self._rows = frozenset(rows)
        size = batch.rows * batch.width
        self.margin = torch.zeros(size, device=device)  # (B T,)
        self.expected = torch.zeros(size, device=device)

    @property
    def tensors(self) -> list[Tensor]:
        """What processes add up, and what a pass that begins again clears."""
        return [self.margin, self.expected] if self._rows else []

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
                    margin, expected = token_margins(
                        inside, part.tokens[some], seed[some], position[some]
                    )
                    self.margin[part.indices[some]] = margin
                    self.expected[part.indices[some]] = expected

        return observe

    def sums(self) -> tuple[Tensor, Tensor]:
        """Each row's margin and expected margin (B,), on the CPU; 0 for rows not looked at."""
        shape = self._batch.rows, self._batch.width
        both = torch.stack([self.margin, self.expected]).cpu().double().view(2, *shape).sum(dim=2)
        return both[0], both[1]

    def by_donor(self) -> dict[str, list[float]]:
        """Of the rows that were looked at, by their donors: how many, margin, expected margin."""
        if not self._rows:
            return {}
        margins, expected = self.sums()
        donors = self._batch.donors
        found: dict[str, list[float]] = {}
        for donor in sorted({int(donors[row]) for row in self._rows}):
            rows = torch.tensor([row for row in self._rows if donors[row] == donor])
            sums = float(margins[rows].sum()), float(expected[rows].sum())
            found[str(donor)] = [len(rows), *sums]
        return found


def response_margins(
    policy: Policy, batch: Batch, temperature: float, budget: int
) -> tuple[Tensor, Tensor]:
    """The margin and the expected margin (B,) of each of a batch's responses, on the CPU.

    At most `budget` tokens are computed at a time.
    """
    table = MarginTable(batch, range(batch.rows), policy.device)
    with torch.no_grad(), policy.packed():
        for rows in plan_of(policy, batch, range(batch.rows), budget):
            part = pack(batch, rows, policy.device)
            score_pack(policy, part, temperature, observe=table.observer(part, rows))
    return table.sums()
