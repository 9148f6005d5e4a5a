"""FedAvgM (Hsu et al., 2019)."""

from typing import ClassVar

from pydantic import Field

from pubswap_protocol.bounds import PositiveFactor
from pubswap_protocol.methods.server_optimizers.optimizer import (
    SERVER_OPTIMIZERS,
    Row,
    ServerOptimizer,
)

BETA = 0.9


@SERVER_OPTIMIZERS.register
class Momentum(ServerOptimizer):
    """m <- 0.9 m + Delta; theta <- theta + eta m (FedAvgM)."""

    name = "momentum"
    memory: ClassVar = {"momentum": 0.0}

    rate: PositiveFactor = Field(default=1.0, description="eta, the server's learning rate.")

    def advance(self, state: list[Row], delta: Row) -> list[Row]:
        return [BETA * state[0] + delta]

    def step(self, state: list[Row]) -> Row:
        return self.rate * state[0]
