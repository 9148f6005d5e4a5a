"""PubSwap-keep (paper, section 3.4)."""

from collections.abc import Iterator

import numpy as np

from pubswap_protocol.methods.strategies.pool import Choice, Pool
from pubswap_protocol.methods.strategies.strategy import STRATEGIES, Strategy


@STRATEGIES.register
class Keep(Strategy):
    """Correct responses of peers replace wrong ones of one's own, up to half of the group.

    With c of K correct and c < K/2, up to K/2 - c incorrect ones, chosen uniformly, give place to
    correct ones drawn without replacement from the peers' pool; fewer if it holds fewer.
    """

    name = "keep"

    def group(self, pool: Pool, position: int, receiver: str) -> list[Choice]:
        verdicts, correct = pool.correct[receiver][position], pool.correct_ones[position]
        group, size = pool.own(receiver), len(verdicts)
        first = pool.numbers[receiver] * size
        begin, end = np.searchsorted(correct, (first, first + size)).tolist()
        peers = len(correct) - (end - begin)
        count = min(size // 2 - int(verdicts.sum()), peers)
        if count <= 0:
            return group
        rng = pool.rng("keep", position, receiver)
        slots = rng.choice(np.flatnonzero(~verdicts), size=count, replace=False)
        donors = rng.choice(peers, size=count, replace=False)
        # Skip the receiver's own responses, which are between `begin` and `end`.
        flats = correct[np.where(donors < begin, donors, donors + (end - begin))]
        for slot, flat in zip(slots.tolist(), flats.tolist(), strict=True):
            group[slot] = pool.choice(flat)
        return group

    def replaced(self, pool: Pool) -> dict[str, int]:
        """It follows from counts, without each client's draws."""
        if type(self).group is not Keep.group:
            return super().replaced(pool)
        lacking = pool.right.shape[2] // 2 - pool.right.sum(axis=2)
        eligible = pool.eligible.sum(axis=2)
        counts = np.minimum(np.maximum(lacking, 0), eligible.sum(axis=0) - eligible).sum(axis=1)
        return dict(zip(pool.clients, counts.tolist(), strict=True))

    def impossible(self, responses: int) -> Iterator[str]:
        if responses % 2:
            yield (
                "method.strategy 'keep' fills a group up to half, so grpo.responses_per_prompt "
                "must be even"
            )
