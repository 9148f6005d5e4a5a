"""How well a score tells members from others: AUC with an interval, and TPR at 1 % FPR."""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]


def auc(members: Scores, others: Scores) -> float:
    """The share of the m n pairs in which the member has the larger score; ties count half.

    It is the area under the ROC curve, and U / (m n) of the Mann-Whitney test.
    """
    ordered = np.sort(others)
    below = np.searchsorted(ordered, members, "left")
    not_above = np.searchsorted(ordered, members, "right")
    return float((below + not_above).sum() / (2 * len(members) * len(others)))


def auc_interval(area: float, members: int, others: int, confidence: float) -> tuple[float, float]:
    """Newcombe's score interval (Statistics in Medicine 25, 2006, part 2, method 5).

    All a in [0, 1] with |area - a| <= z s(a), where for m members, n others and N = (m + n)/2 - 1

        s(a)^2 = a (1 - a) / (m n) (1 + N ((1 - a) / (2 - a) + a / (1 + a))).

    s(1/2) is that of the Mann-Whitney test, so 1/2 is outside if the test rejects. Unlike DeLong's
    interval, it has a width even if all members are above all others.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    half = (members + others) / 2 - 1

    def inside(a: float) -> bool:
        spread = 1 + half * ((1 - a) / (2 - a) + a / (1 + a))
        return abs(area - a) <= z * math.sqrt(a * (1 - a) * spread / (members * others))

    return _edge(inside, area, 0.0), _edge(inside, area, 1.0)


def _edge(inside: Callable[[float], bool], within: float, beyond: float) -> float:
    """The interval's end between a value inside it and one that is not, by bisection."""
    for _ in range(50):
        middle = (within + beyond) / 2
        within, beyond = (middle, beyond) if inside(middle) else (within, middle)
    return within


def true_positives(members: Scores, others: Scores, share: float) -> int:
    """How many members are over a threshold that at most `share` of the others exceed (TPR at FPR).

    With fewer than 1 / share others, none of them does.
    """
    threshold = np.sort(others)[::-1][int(share * len(others))]
    return int(np.sum(members > threshold))


def chance_of(hits: int, members: int, others: int, share: float) -> float:
    """The probability that `true_positives` is `hits` or more for a random score.

    That is the case if, of the first hits + a of all m + n in a random order, at most a = share n
    are others: a sum of hypergeometric probabilities.
    """
    allowed = int(share * others)
    first = hits + allowed
    ways = sum(math.comb(others, k) * math.comb(members, first - k) for k in range(allowed + 1))
    return ways / math.comb(members + others, first)
