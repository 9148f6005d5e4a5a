"""Server optimizers: the averaged update Delta = mean - theta as a gradient (FedOpt).

Reddi et al., 2021, algorithm 2, without bias correction; momentum as in FedAvgM (Hsu et al., 2019).
What an optimizer remembers is rounded to float32 before it is used, so that a run which goes on
from the stored state ends in the same bits.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.adapter import Array
from pubswap_protocol.settings import AggregationSettings
from pubswap_server.aggregation.rule import Row


class ServerOptimizer(Protocol):
    """theta <- theta + step(state), after state <- advance(state, Delta)."""

    @property
    def memory(self) -> dict[str, float]:
        """What is remembered of each number, by name, and where it begins; names in order."""
        ...

    def advance(self, state: list[Array], delta: Row) -> list[Array]:
        """The next state, in the order of `memory`, all of the shape of `delta`."""
        ...

    def step(self, state: list[Array]) -> Row:
        """How far the global adapter moves."""
        ...


@dataclass(frozen=True, slots=True)
class Momentum:
    """m <- beta1 m + Delta; theta <- theta + eta m."""

    rate: float
    beta1: float

    @property
    def memory(self) -> dict[str, float]:
        """The momentum alone."""
        return {"momentum": 0.0}

    def advance(self, state: list[Array], delta: Row) -> list[Array]:
        """The next momentum."""
        return [_rounded(self.beta1 * _exact(state[0]) + delta)]

    def step(self, state: list[Array]) -> Row:
        """eta m."""
        return self.rate * _exact(state[0])


@dataclass(frozen=True, slots=True)
class Adam:
    """theta <- theta + eta m / (sqrt(v) + tau), with

    m <- beta1 m + (1 - beta1) Delta
    v <- beta2 v + (1 - beta2) Delta^2
    """

    rate: float
    beta1: float
    beta2: float
    tau: float

    @property
    def memory(self) -> dict[str, float]:
        """m, and v from tau^2 on."""
        return {"momentum": 0.0, "variance": self.tau**2}

    def advance(self, state: list[Array], delta: Row) -> list[Array]:
        """The next m and v."""
        momentum = self.beta1 * _exact(state[0]) + (1 - self.beta1) * delta
        return [_rounded(momentum), _rounded(self.variance(_exact(state[1]), delta * delta))]

    def variance(self, before: Row, square: Row) -> Row:
        """The next v."""
        return self.beta2 * before + (1 - self.beta2) * square

    def step(self, state: list[Array]) -> Row:
        """eta m / (sqrt(v) + tau)."""
        return self.rate * _exact(state[0]) / (np.sqrt(_exact(state[1])) + self.tau)


class Yogi(Adam):
    """Adam whose v changes by the size of Delta^2 alone, whatever v is:

    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)
    """

    def variance(self, before: Row, square: Row) -> Row:
        """The next v."""
        return before - (1 - self.beta2) * square * np.sign(before - square)


def server_optimizer(settings: AggregationSettings) -> ServerOptimizer | None:
    """The one that the settings name, if any."""
    name, rate = settings.server_optimizer, settings.server_learning_rate
    if name == "none":
        return None
    if name == "momentum":
        return Momentum(rate or 1.0, settings.server_beta1)
    kind = Adam if name == "adam" else Yogi
    return kind(rate or 0.01, settings.server_beta1, settings.server_beta2, settings.server_tau)


def _exact(values: Array) -> NDArray[np.float64]:
    return values.astype(np.float64)


def _rounded(values: Row) -> Array:
    return values.astype(np.float32)
