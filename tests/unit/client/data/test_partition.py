"""The partition of a data set among clients."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pubswap_client.data.drawing import dirichlet_split

NAMES = "abcdefgh"


def topics_of(counts: list[int]) -> list[str]:
    return [name for name, count in zip(NAMES, counts, strict=False) for _ in range(count)]


def mean_distance(topics: list[str], parts: list[list[int]]) -> float:
    """Mean total-variation distance of the clients' topic mixtures from the mixture of all."""
    names = sorted(set(topics))
    everyone = np.array([topics.count(name) for name in names]) / len(topics)
    mixtures = [
        np.array([sum(topics[i] == name for i in part) for name in names]) / len(part)
        for part in parts
    ]
    return float(np.mean([np.abs(mixture - everyone).sum() / 2 for mixture in mixtures]))


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([1e-3, 0.1, 0.3, 1.0, 100.0]),
    seed=st.integers(0, 2**32),
)
def test_sets_are_equal_and_disjoint(
    counts: list[int], clients: int, alpha: float, seed: int
) -> None:
    """Every client gets floor(n / N) examples, and no example is used twice."""
    topics = topics_of(counts) + ["a"] * clients
    parts = dirichlet_split(topics, clients, alpha, seed)
    assert [len(part) for part in parts] == [len(topics) // clients] * clients
    given_out = [i for part in parts for i in part]
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= set(range(len(topics)))


def test_same_seed_same_sets() -> None:
    """The sets depend only on the arguments, and another seed gives others."""
    topics = topics_of([50] * 8)
    first = dirichlet_split(topics, 4, 0.3, 1)
    assert dirichlet_split(topics, 4, 0.3, 1) == first
    assert dirichlet_split(topics, 4, 0.3, 2) != first


def test_heterogeneity_grows_as_alpha_falls() -> None:
    """The smaller alpha is, the further the clients' mixtures are from the overall one."""
    topics = topics_of([100] * 8)
    distances = [
        np.mean([mean_distance(topics, dirichlet_split(topics, 4, a, s)) for s in range(10)])
        for a in (100.0, 1.0, 0.1)
    ]
    assert distances == sorted(distances)
    assert distances[0] < 0.15
    assert distances[-1] > 0.4


def test_examples_of_a_topic_are_drawn_at_random() -> None:
    """A client does not simply get the first examples of the file."""
    parts = dirichlet_split(["a"] * 100, 2, 1.0, 0)
    assert sorted(parts[0]) != list(range(50))
    assert parts[0] != sorted(parts[0])
