"""The interface of a rule of aggregation."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.adapter import Array
from pubswap_server.aggregation.gram import Gram

Row = NDArray[np.float64]


class Aggregator(Protocol):
    """How the clients' numbers become one, after some clients may have been left out."""

    @property
    def chooses(self) -> bool:
        """Whether clients are left out by their distances, so that a pass for those is needed."""
        ...

    def choose(self, gram: Gram) -> list[int]:
        """The places of the clients that count, ascending."""
        ...

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """Put one slice (S,) of the clients' (S,) each, whose weights sum to 1, into `out`."""
        ...
