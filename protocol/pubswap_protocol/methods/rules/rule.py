"""The face of an aggregation rule, and the registry of all."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.methods.registry import Registrable, Registry

Array = NDArray[np.float32]
Row = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Rule(Registrable):
    """How the clients' numbers become one; by itself FedAvg's weighted mean of each number."""

    weighs: ClassVar[bool] = True
    """Whether clients have weights; else each counts once."""

    sends_a: ClassVar[bool] = True
    """Whether clients train and send the A, too."""

    selects: ClassVar[bool] = False
    """Whether `select` chooses the clients to combine."""

    def combine(self, rows: Sequence[Array], shares: Sequence[float], out: Row) -> None:
        """Combine one slice (S,) of each client into `out` (S,); the shares sum to 1.

        The sum is taken in float64, in the order of the clients.
        """
        if len(set(shares)) == 1:  # saves a product for each number
            np.copyto(out, rows[0])
            for row in rows[1:]:
                np.add(out, row, out=out)
            if len(rows) & (len(rows) - 1):
                np.divide(out, len(rows), out=out)
            else:  # the inverse is exact, and multiplying takes a quarter of the time
                np.multiply(out, 1 / len(rows), out=out)
            return
        term = np.empty_like(out)
        np.multiply(rows[0], shares[0], out=out, dtype=np.float64)
        for row, share in zip(rows[1:], shares[1:], strict=True):
            np.multiply(row, share, out=term, dtype=np.float64)
            np.add(out, term, out=out)

    def select(self, distances: Matrix) -> list[int]:
        """The clients to combine, from the squared distances (N, N) of their updates."""
        return list(range(len(distances)))

    def used(self, updates: int) -> "Rule":
        """The rule for so many updates: another one if this one is impossible with them."""
        return self

    def impossible(self, clients: int) -> Iterator[str]:
        """Why it is impossible with so many clients, with advice."""
        yield from ()


RULES = Registry[Rule]("aggregation rule", default="fedit")
