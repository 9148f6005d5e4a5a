"""PubSwap-random (paper, section 3.4)."""

from collections import Counter

from pubswap_protocol.methods.strategies.pool import Choice, Pool
from pubswap_protocol.methods.strategies.strategy import STRATEGIES, Strategy


@STRATEGIES.register
class Random(Strategy):
    """K of all members' N K responses, drawn uniformly, the same for all."""

    name = "random"

    def group(self, pool: Pool, position: int, receiver: str) -> list[Choice]:
        return _drawn(pool, position)

    def replaced(self, pool: Pool) -> dict[str, int]:
        """It follows from one draw for each prompt."""
        if type(self).group is not Random.group:
            return super().replaced(pool)
        drawn = [
            choice
            for position in range(len(pool.prompts))
            for choice in _drawn(pool, position)
            if pool.may_get(choice, position)
        ]
        by_donor = Counter(choice.client for choice in drawn)
        return {name: len(drawn) - by_donor[name] for name in pool.clients}


def _drawn(pool: Pool, position: int) -> list[Choice]:
    clients, _, size = pool.right.shape
    drawn = pool.rng("random", position).choice(clients * size, size=size, replace=False)
    return [pool.choice(flat) for flat in drawn.tolist()]
