"""The face of a server optimizer, and the registry of all."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.methods.registry import Registrable, Registry

Row = NDArray[np.float64]


class ServerOptimizer(Registrable):
    """An optimizer that takes the averaged update Delta as a gradient.

    The state is rounded to float32 before it is used, so that a run that continues from the stored
    state ends in the same bits.
    """

    memory: ClassVar[Mapping[str, float]] = {}
    """The initial value of each part of a number's state, by name, in order."""

    def advance(self, state: list[Row], delta: Row) -> list[Row]:
        """The next state, in the order of `memory`, each of the shape of `delta`; not rounded."""
        raise NotImplementedError

    def step(self, state: list[Row]) -> Row:
        """What is added to theta, from the rounded state."""
        raise NotImplementedError


SERVER_OPTIMIZERS = Registry[ServerOptimizer]("server optimizer", default="none")


@SERVER_OPTIMIZERS.register
class NoOptimizer(ServerOptimizer):
    """theta <- theta + Delta: the mean itself, as in the paper."""

    name = "none"
