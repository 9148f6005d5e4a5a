"""The evidence that responses were not sampled with the noise of their seeds.

Of a token y that was sent, with z the logits by our own policy, over the temperature, and g the
noise of its seed and position (see rollout/gumbel.py),

    other(y) = softmax(z)_y,   sampled_c,s(y) = softmax((c z + g) / s)_y

are the probabilities of drawing it without regard to the noise, and by the sampler of a similar
policy, whose logits differ by Gumbel noise of scale s, at 1 / c of the temperature. So that no
single token decides, `sampled` has a part of OTHERWISE of `other`. Who rewrites the end of a
response has sampled its beginning; where that ends is not known, so that all n + 1 places, also
before the first token and after the last one, are equally likely. The likelihood ratio against n
tokens is

    R_s = 1 / (n + 1) sum_{t=1}^{n+1} prod_{i=t}^{n} other(y_i) / sampled_1,s(y_i).

Nor is it known how far policies have drifted apart. As many responses are taken to be of a policy
that is NEAR as of one that is FAR, and the evidence is, in nats,

    evidence = -log [(1 / R_NEAR + 1 / R_FAR) / 2] - DRIFTED / 2:

below 0 for sampled responses and above it for others. Who samples by this noise at another
temperature sends much of what it chose; so there is the evidence for such a sampler, too,

    hotter = sum_i log [sampled_HOTTER,NEAR(y_i) / sampled_1,NEAR(y_i)] + DRIFTED,
    colder = sum_i log [sampled_COLDER,NEAR(y_i) / sampled_1,NEAR(y_i)] - DRIFTED,

All are taken over the 64 likeliest tokens and y. Honest policies that are apart look colder to each
other, by DRIFTED nats a response, and half as much as if they drew by other noise.
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
# s: how far logits of the federation's policies are apart soon after they were averaged, and when
# each has trained for long.
NEAR, FAR = 0.3, 0.6
OTHERWISE = 0.03  # the share of honest tokens of which nothing is assumed
HOTTER, COLDER = 0.8, 1.75  # c
DRIFTED = 0.08  # nats a response


def another_temperature(hotter: float, colder: float) -> float:
    """The evidence, in nats, for either: the ratio of a sampler of which both are as likely."""
    return max(hotter, colder) + math.log((1 + math.exp(-abs(hotter - colder))) / 2)


@torch.no_grad()
def token_evidence(logits: Tensor, tokens: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """log of other over sampled of NEAR and of FAR, sampled_HOTTER and _COLDER over it (4, n).

    Of `tokens` (n,) by logits / temperature (n, V), in nats.
    """
    return _evidence_of(*_likeliest(logits, tokens), seeds, positions)


def _likeliest(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The logits and the ids (n, 65 at most) of the token that was sent and of the likeliest."""
    sent = tokens[:, None]
    # Their order says nothing, and takes half of the time.
    top, ids = logits.topk(min(LIKELIEST, logits.shape[1]), dim=1, sorted=False)
    top.masked_fill_(ids == sent, -torch.inf)  # it is counted once
    return torch.cat([logits.gather(1, sent), top], dim=1), torch.cat([sent, ids], dim=1)


def _evidence_of(values: Tensor, ids: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    noise = gumbel_noise(seeds[:, None], positions[:, None], ids)
    other = values[:, 0] - values.logsumexp(dim=1)
    scales = ((1.0, NEAR), (1.0, FAR), (HOTTER, NEAR), (COLDER, NEAR))
    noised = torch.stack([(c * values + noise).div_(scale) for c, scale in scales])
    drawn = noised[..., 0] - noised.logsumexp(dim=2)
    sampled = torch.logaddexp(drawn + math.log1p(-OTHERWISE), other + math.log(OTHERWISE))
    near, far, hotter, colder = sampled
    return torch.stack([other - near, other - far, hotter - near, colder - near])


class EvidenceTable:
    """The evidence against some rows of a batch, while a pass fills in that of their tokens."""

    def __init__(self, batch: Batch, rows: Iterable[int], device: torch.device) -> None:
        self._batch = batch
        self._rows = frozenset(rows)
        self._evidence = torch.zeros(4, batch.rows * batch.width, device=device)  # (4, B T)

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
            inside, found = [], []
            for begin, end in spans:
                begin, end = max(begin, place.start), min(end, place.stop)
                if begin < end:
                    inside.append(torch.arange(begin, end, device=logits.device))
                    theirs = logits[begin - place.start : end - place.start]
                    found.append(_likeliest(theirs, part.tokens[begin:end]))
            if found:
                # Together, since each has few tokens, and there are many small operations.
                values, ids = (torch.cat(each) for each in zip(*found, strict=True))
                at = torch.cat(inside)
                evidence = _evidence_of(values, ids, seed[at], position[at])
                self._evidence[:, part.indices[at]] = evidence

        return observe

    def sums(self) -> Tensor:
        """`evidence`, `hotter` and `colder` of each row that is looked at (B, 3), on the CPU."""
        lengths = torch.tensor(self._batch.lengths)[:, None]
        *either, hotter, colder = self._evidence.cpu().double().view(4, self._batch.rows, -1)
        ratios = []
        for tokens in either:
            ends = tokens.flip(1).cumsum(dim=1).flip(1)  # from each token on
            ends.masked_fill_(torch.arange(ends.shape[1]) >= lengths, -torch.inf)
            none = torch.zeros(len(ends), 1, dtype=ends.dtype)  # after the last token
            ratios.append(torch.cat([ends, none], dim=1).logsumexp(dim=1) - lengths[:, 0].log1p())
        near, far = ratios
        evidence = math.log(2) - torch.logaddexp(-near, -far) - DRIFTED / 2
        temperatures = hotter.sum(dim=1) + DRIFTED, colder.sum(dim=1) - DRIFTED
        return torch.stack([evidence, *temperatures], dim=1)

    def by_donor(self) -> dict[str, list[float]]:
        """Of the rows that were looked at, by donor: how many, and the sums of their evidence."""
        if not self._rows:
            return {}
        evidence, donors = self.sums(), self._batch.donors
        found: dict[str, list[float]] = {}
        for donor in sorted({int(donors[row]) for row in self._rows}):
            rows = [row for row in self._rows if donors[row] == donor]
            found[str(donor)] = [len(rows), *evidence[rows].sum(dim=0).tolist()]
        return found


def response_evidence(policy: Policy, batch: Batch, temperature: float, budget: int) -> Tensor:
    """`evidence`, `hotter` and `colder` of each of a batch's responses (B, 3), on the CPU.

    At most `budget` tokens are computed at a time.
    """
    table = EvidenceTable(batch, range(batch.rows), policy.device)
    with torch.no_grad(), policy.packed():
        for rows in plan_of(policy, batch, range(batch.rows), budget):
            part = pack(batch, rows, policy.device)
            score_pack(policy, part, temperature, observe=table.observer(part, rows))
    return table.sums()
