"""Multi-Krum (Blanchard et al., 2017): the mean of the clients that are closest to their peers."""

import numpy as np

from pubswap_server.aggregation.fedit import FedIT
from pubswap_server.aggregation.gram import Gram


class MultiKrum(FedIT):
    """The mean of the m clients of the lowest scores

        s_n = sum of |theta_n - theta_j|^2 over the N - f - 2 clients j that are closest to n

    It stands f bad clients of N >= 2 f + 3.
    """

    chooses = True

    def __init__(self, bad: int, kept: int | None) -> None:
        """Stand f = `bad` clients, and average m = `kept`, or N - f if that is None or fewer."""
        super().__init__()
        self.bad = bad
        self.kept = kept

    def choose(self, gram: Gram) -> list[int]:
        """The m clients of the lowest scores; of equal ones, those that come first by name."""
        distances = gram.squared_distances()
        count = len(distances)
        np.fill_diagonal(distances, np.inf)
        closest = np.sort(distances, axis=1)[:, : count - self.bad - 2]
        order = np.argsort(closest.sum(axis=1), kind="stable")
        most = count - self.bad
        kept = most if self.kept is None else min(self.kept, most)
        return sorted(int(place) for place in order[:kept])
