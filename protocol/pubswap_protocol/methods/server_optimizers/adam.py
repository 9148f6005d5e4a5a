"""FedAdam (Reddi et al., 2021, algorithm 2), without bias correction."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from pubswap_protocol.bounds import PositiveFactor
from pubswap_protocol.methods.server_optimizers.optimizer import (
    SERVER_OPTIMIZERS,
    Row,
    ServerOptimizer,
)

BETA1, BETA2, TAU = 0.9, 0.99, 1e-3  # as Reddi et al.


@SERVER_OPTIMIZERS.register
class Adam(ServerOptimizer):
    """theta <- theta + eta m / (sqrt(v) + tau), of moments m and v of Delta (FedAdam).

    m <- beta1 m + (1 - beta1) Delta
    v <- beta2 v + (1 - beta2) Delta^2
    """

    name = "adam"
    memory: ClassVar = {"momentum": 0.0, "variance": TAU**2}

    rate: PositiveFactor = Field(default=0.01, description="eta, the server's learning rate.")

    def advance(self, state: list[Row], delta: Row) -> list[Row]:
        momentum = BETA1 * state[0] + (1 - BETA1) * delta
        return [momentum, BETA2 * state[1] + (1 - BETA2) * (delta * delta)]

    def step(self, state: list[Row]) -> Row:
        return self.rate * state[0] / (np.sqrt(state[1]) + TAU)
