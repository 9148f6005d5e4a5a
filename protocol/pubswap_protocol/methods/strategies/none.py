"""Public steps without an exchange: the control of the study."""

from pubswap_protocol.methods.strategies.pool import Choice, Pool
from pubswap_protocol.methods.strategies.strategy import STRATEGIES, Strategy


@STRATEGIES.register
class NoExchange(Strategy):
    """One's own responses alone: the public prompts without the exchange, to compare with."""

    name = "none"

    def group(self, pool: Pool, position: int, receiver: str) -> list[Choice]:
        return pool.own(receiver)
