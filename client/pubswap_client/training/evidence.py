"""Evidence that responses were not drawn with the noise of their seeds.

For a token y that was sent, let z be our own policy's logits over the temperature, and g the noise
of its seed and position (see rollout/gumbel.py). Then

    other(y) = softmax(z)_y,   sampled(y) = softmax((z + g) / S)_y

are the probabilities of y under other noise and under this noise. S is the scale of what we do not
know: how far the donor's policy has drifted from ours. A share OTHERWISE of `sampled` is `other`,
so that no single token decides.

A response may be sampled up to some token and rewritten from there on. All n + 1 places are equally
likely, including before the first token and after the last. The evidence against n tokens is the
log-likelihood ratio

    log [1 / (n + 1) sum_{t=1}^{n+1} prod_{i=t}^{n} other(y_i) / sampled(y_i)]

in nats, over the 64 likeliest tokens and y: below 0 for sampled responses, above 0 for others. The
donor's own log-probabilities are not used, so there is nothing to forge.
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
SCALE = 0.6  # S, in logits
OTHERWISE = 0.05  # share of honest tokens about which nothing is assumed


def likeliest_of(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and ids (n, at most 65) of the token that was sent and of the likeliest tokens."""
    sent = tokens[:, None]
    # Unsorted, because the order is not needed and takes half of the time.
    top, ids = logits.topk(min(LIKELIEST, logits.shape[1]), dim=1, sorted=False)
    top.masked_fill_(ids == sent, -torch.inf)  # count it only once
    return torch.cat([logits.gather(1, sent), top], dim=1), torch.cat([sent, ids], dim=1)


def token_evidence(values: Tensor, ids: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """log (other / sampled) of each token that was sent (n,), by its `likeliest_of`."""
    noise = gumbel_noise(seeds[:, None], positions[:, None], ids)
    noised = noise.add_(values).div_(SCALE)
    other = values[:, 0] - values.logsumexp(dim=1)
    drawn = noised[:, 0] - noised.logsumexp(dim=1)
    return other - torch.logaddexp(drawn + math.log1p(-OTHERWISE), other + math.log(OTHERWISE))


class EvidenceTable:
    """Evidence against some rows of a batch. A forward pass fills it in, token by token."""

    def __init__(self, batch: Batch, rows: Iterable[int], device: torch.device) -> None:
        self._batch = batch
        self._rows = frozenset(rows)
        self._evidence = torch.zeros(batch.rows * batch.width, device=device)  # (B T,)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors to sum over processes, and to clear when a pass starts over."""
        return [self._evidence] if self._rows else []

    def observer(self, part: Pack, rows: Sequence[int]) -> Observe | None:
        """A callback for the logits of a pack of these rows; None if none of them is checked."""
        batch, end = self._batch, 0
        spans: list[tuple[int, int]] = []
        seeds, positions = [], []
        for row in rows:
            begin, end = end, end + batch.lengths[row]
            offset = batch.prompt_lengths[row // batch.group_size] - 1
            seeds.append(batch.seeds[row].expand(end - begin))
            positions.append(torch.arange(offset, offset + end - begin))
            if row in self._rows:
                # Adjacent rows are processed together.
                first = spans.pop()[0] if spans and spans[-1][1] == begin else begin
                spans.append((first, end))
        if not spans:
            return None
        per_token = [torch.cat(each).to(part.tokens.device) for each in (seeds, positions)]

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
                self._evidence[part.indices[at]] = evidence

        return observe

    def by_row(self) -> Tensor:
        """Evidence against each row that is checked (B,), on the CPU."""
        lengths = torch.tensor(self._batch.lengths)[:, None]
        tokens = self._evidence.cpu().double().view(self._batch.rows, -1)
        ends = tokens.flip(1).cumsum(dim=1).flip(1)  # from each token on
        ends.masked_fill_(torch.arange(ends.shape[1]) >= lengths, -torch.inf)
        none = torch.zeros(len(ends), 1, dtype=ends.dtype)  # after the last token
        return torch.cat([ends, none], dim=1).logsumexp(dim=1) - lengths[:, 0].log1p()

    def by_donor(self) -> dict[str, list[float]]:
        """By donor: the number of its checked rows, and the sum of their evidence."""
        rows: dict[int, list[int]] = {}
        for row in sorted(self._rows):
            rows.setdefault(int(self._batch.donors[row]), []).append(row)
        evidence = self.by_row() if rows else torch.empty(0)
        return {
            str(donor): [len(rows[donor]), float(evidence[rows[donor]].sum())]
            for donor in sorted(rows)
        }


def response_evidence(policy: Policy, batch: Batch, temperature: float, budget: int) -> Tensor:
    """The evidence against each of a batch's responses (B,).

    At most `budget` tokens are computed at a time.
    """
    table = EvidenceTable(batch, range(batch.rows), policy.device)
    with torch.no_grad(), policy.packed():
        for rows in plan_of(policy, batch, range(batch.rows), budget):
            part = pack(batch, rows, policy.device)
            score_pack(policy, part, temperature, observe=table.observer(part, rows))
    return table.by_row()
