"""Evidence that responses were not sampled with the noise of their seeds.

For a token y that was sent, let z be our own policy's logits over the temperature, l the
log-probability claimed by its donor, and g the noise of its seed and position (see
rollout/gumbel.py). The claim says more about the donor's policy than our logits do. So z' is l for
y, and z scaled to the remaining probability 1 - e^l for the other tokens. Then

    other(y) = e^l,   sampled_c(y) = softmax((c z' + g) / S)_y

are the probabilities of y under other noise, and under this noise at 1 / c of the temperature. S is
the scale of the remaining uncertainty about the other tokens' logits. A share OTHERWISE of
`sampled` is `other`, so that no single token decides.

A response may be sampled up to some token and rewritten from there on. All n + 1 places are equally
likely, including before the first token and after the last. The first evidence against n tokens is

    claimed = log [1 / (n + 1) sum_{t=1}^{n+1} prod_{i=t}^{n} other(y_i) / sampled_1(y_i)]

A donor may lie about l. So `own` is the same with z for z', softmax(z)_y for e^l, a larger scale
because our policy has drifted from the donor's, and DRIFT subtracted. The evidence for *other
noise* is the even mixture of both (`either`), so the larger one dominates.

A donor that uses this noise with another policy, or at another temperature, still sends many of the
tokens that the noise selects. The evidence for an *other policy* is, mixed in the same way,

    hotter, colder = sum_i log [sampled_c(y_i) / sampled_1(y_i)],   c = HOTTER, COLDER
    apart = sum_i log [Laplace(d_i; 3 b) / Laplace(d_i; b)]

where d_i is the difference of the log-odds of y_i, as claimed and by our policy. `apart` leaves out
tokens that both policies are sure of, because their log-odds say little. The scale b calibrates
itself: it is the lower median over a batch's donors of each donor's median |d| / log 2, and at
least NEAR. Its excess over NEAR lowers the evidence for other noise by DRIFT (b / NEAR - 1) per
response. Beyond OWN_LIMIT, honest policies have drifted too far apart to be judged by ours, and
`own` is left out.

Each is a log-likelihood ratio in nats, over the 64 likeliest tokens and y: below 0 for sampled
responses, above 0 for others.
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

KINDS = ("claimed", "own", "hotter", "colder", "apart")
LIKELIEST = 64
SCALE, OWN_SCALE = 0.2, 0.6  # S, in logits: with the donor's claim, and by our policy alone
OTHERWISE = 0.01  # share of honest tokens about which nothing is assumed
HOTTER, COLDER = 0.8, 1.75  # c
NEAR = 0.8  # least b, in log-odds
FARTHER = 3.0  # b of another policy, over that of policies of one round
OWN_LIMIT = 1.5  # in log-odds
SURE = 0.98
DRIFT = 0.05  # nats a response
CLAIMS = (-30.0, -1e-6)  # log-probabilities are clamped to this range
LARGEST_ODDS, LARGEST_DIFFERENCE = math.log(1e4), 6.0


def either(*evidence: float) -> float:
    """Evidence in nats for any of several hypotheses: the log ratio of their even mixture."""
    largest = max(evidence)
    return largest + math.log(sum(math.exp(one - largest) for one in evidence) / len(evidence))


def combined(claimed: float, own: float, *policy: float) -> tuple[float, float]:
    """Evidence for other noise and for another policy, from the sums of each of KINDS."""
    return either(claimed, own), either(*policy)


def likeliest_of(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and ids (n, at most 65) of the token that was sent and of the likeliest tokens."""
    sent = tokens[:, None]
    # Unsorted, because the order is not needed and takes half of the time.
    top, ids = logits.topk(min(LIKELIEST, logits.shape[1]), dim=1, sorted=False)
    top.masked_fill_(ids == sent, -torch.inf)  # count it only once
    return torch.cat([logits.gather(1, sent), top], dim=1), torch.cat([sent, ids], dim=1)


def token_evidence(
    values: Tensor, ids: Tensor, claims: Tensor, seeds: Tensor, positions: Tensor
) -> Tensor:
    """Evidence of each of KINDS in each token that was sent (5, n), by its `likeliest_of`.

    For `claimed` and `own` it is log (other / sampled); for `apart` it is 1 + |d|, or 0 where both
    policies are sure. `claims` (n,) are log-probabilities.
    """
    noise = gumbel_noise(seeds[:, None], positions[:, None], ids)
    own = values - values.logsumexp(dim=1, keepdim=True)
    claim, others = claims.clamp(*CLAIMS)[:, None], own[:, 1:]
    shift = torch.log(-torch.expm1(claim)) - others.logsumexp(dim=1, keepdim=True)
    claimed = torch.cat([claim, others + shift], dim=1)

    def sampled(logits: Tensor, scale: float, c: float = 1.0) -> Tensor:
        noised = (c * logits + noise).div_(scale)
        drawn = noised[:, 0] - noised.logsumexp(dim=1)
        return torch.logaddexp(drawn + math.log1p(-OTHERWISE), logits[:, 0] + math.log(OTHERWISE))

    plain = sampled(claimed, SCALE)
    return torch.stack(
        [
            claimed[:, 0] - plain,
            own[:, 0] - sampled(own, OWN_SCALE),
            sampled(claimed, SCALE, HOTTER) - plain,
            sampled(claimed, SCALE, COLDER) - plain,
            _distances(claimed[:, 0], own[:, 0]),
        ]
    )


def _distances(claimed: Tensor, own: Tensor) -> Tensor:
    """1 + |d| for log-probabilities (n,); 0 where both policies are sure."""
    odds = [(each - torch.log(-torch.expm1(each))) for each in (claimed, own.clamp(*CLAIMS))]
    claimed_odds, own_odds = (each.clamp(max=LARGEST_ODDS) for each in odds)
    distance = (claimed_odds - own_odds).abs().clamp(max=LARGEST_DIFFERENCE)
    return (1 + distance).masked_fill(torch.minimum(claimed, own) > math.log(SURE), 0.0)


def calibrated(scales: Iterable[float]) -> float:
    """The scale b of a batch, from its donors' scales. A single donor does not calibrate."""
    ordered = sorted(scales)
    middle = ordered[(len(ordered) - 1) // 2] if len(ordered) > 1 else NEAR
    return max(NEAR, middle)


class EvidenceTable:
    """Evidence against some rows of a batch. A forward pass fills it in, token by token."""

    def __init__(self, batch: Batch, rows: Iterable[int], device: torch.device) -> None:
        self._batch = batch
        self._rows = frozenset(rows)
        self._evidence = torch.zeros(
            len(KINDS), batch.rows * batch.width, device=device
        )  # (5, B T)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors to sum over processes, and to clear when a pass starts over."""
        return [self._evidence] if self._rows else []

    def observer(self, part: Pack, rows: Sequence[int]) -> Observe | None:
        """A callback for the logits of a pack of these rows; None if none of them is checked."""
        batch, end = self._batch, 0
        spans: list[tuple[int, int]] = []
        seeds, positions, claims = [], [], []
        for row in rows:
            begin, end = end, end + batch.lengths[row]
            offset = batch.prompt_lengths[row // batch.group_size] - 1
            seeds.append(batch.seeds[row].expand(end - begin))
            claims.append(batch.behaviour[row, : end - begin])
            positions.append(torch.arange(offset, offset + end - begin))
            if row in self._rows:
                # Adjacent rows are processed together.
                first = spans.pop()[0] if spans and spans[-1][1] == begin else begin
                spans.append((first, end))
        if not spans:
            return None
        per_token = [torch.cat(each).to(part.tokens.device) for each in (claims, seeds, positions)]

        def observe(chunk: slice, logits: Tensor) -> None:
            inside, likeliest = [], []
            for begin, end in spans:
                begin, end = max(begin, chunk.start), min(end, chunk.stop)
                if begin < end:
                    inside.append(torch.arange(begin, end, device=logits.device))
                    span_logits = logits[begin - chunk.start : end - chunk.start]
                    likeliest.append(likeliest_of(span_logits, part.tokens[begin:end]))
            if likeliest:
                # All at once, because each span has few tokens and needs many small operations.
                values, ids = (torch.cat(each) for each in zip(*likeliest, strict=True))
                at = torch.cat(inside)
                evidence = token_evidence(values, ids, *(each[at] for each in per_token))
                self._evidence[:, part.indices[at]] = evidence

        return observe

    def sums(self, near: float = NEAR) -> Tensor:
        """Evidence of each of KINDS against each row that is checked (B, 5), on the CPU.

        `near` is the scale b.
        """
        lengths = torch.tensor(self._batch.lengths)[:, None]
        evidence = self._by_row()
        ratios = []
        for tokens in evidence[:2]:
            ends = tokens.flip(1).cumsum(dim=1).flip(1)  # from each token on
            ends.masked_fill_(torch.arange(ends.shape[1]) >= lengths, -torch.inf)
            none = torch.zeros(len(ends), 1, dtype=ends.dtype)  # after the last token
            ratios.append(torch.cat([ends, none], dim=1).logsumexp(dim=1) - lengths[:, 0].log1p())
        claimed, own = ratios
        distances = evidence[4]
        farther = (distances - 1) * (1 - 1 / FARTHER) / near - math.log(FARTHER)
        apart = farther.masked_fill(distances == 0, 0.0).sum(dim=1)
        claimed = claimed - DRIFT * (near / NEAR - 1)
        own = own - DRIFT * near / NEAR if near <= OWN_LIMIT else claimed
        return torch.stack([claimed, own, *evidence[2:4].sum(dim=2), apart], dim=1)

    def scales(self, groups: Iterable[Sequence[int]]) -> list[float]:
        """The scale of d's Laplace distribution for each group of rows, from the median |d|."""
        distances, scales = self._by_row()[4], []
        for rows in groups:
            values = distances[rows]
            values = values[values > 0]
            scales.append(float(values.median() - 1) / math.log(2) if len(values) else 0.0)
        return scales

    def _by_row(self) -> Tensor:
        return self._evidence.cpu().double().view(len(KINDS), self._batch.rows, -1)

    def by_donor(self) -> dict[str, list[float]]:
        """By donor: the number of its checked rows, and the sums of their evidence."""
        rows: dict[int, list[int]] = {}
        for row in sorted(self._rows):
            rows.setdefault(int(self._batch.donors[row]), []).append(row)
        if not rows:
            return {}
        evidence = self.sums(calibrated(self.scales(rows.values())))
        return {
            str(donor): [len(rows[donor]), *evidence[rows[donor]].sum(dim=0).tolist()]
            for donor in sorted(rows)
        }


def response_evidence(
    policy: Policy, batch: Batch, temperature: float, budget: int
) -> EvidenceTable:
    """Compute the evidence against each of a batch's responses; see `sums`.

    At most `budget` tokens are computed at a time.
    """
    table = EvidenceTable(batch, range(batch.rows), policy.device)
    with torch.no_grad(), policy.packed():
        for rows in plan_of(policy, batch, range(batch.rows), budget):
            part = pack(batch, rows, policy.device)
            score_pack(policy, part, temperature, observe=table.observer(part, rows))
    return table
