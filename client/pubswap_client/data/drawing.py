"""Draw a split's problems from the usable ones, and divide them into sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pubswap_client.data.spec import DataSpec, SplitSizes
from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem


def dirichlet_split(
    topics: Sequence[str], clients: int, alpha: float, seed: int
) -> list[list[int]]:
    """Divide examples into client sets of equal size with different mixtures of topics.

    The procedure of Acar et al., "Federated Learning Based on Dynamic Regularization" (ICLR
    2021): each client draws a prior over the topics from a symmetric Dirichlet(alpha). Then, until
    all sets are full, a client with room left is picked uniformly, draws a topic from its prior
    restricted to the topics that have examples left, and takes one example of that topic. A small
    alpha gives each client few topics; a large one gives all clients the same mixture.

    Returns N disjoint lists of floor(n / N) indices into `topics` (n), in the order drawn; the
    n mod N examples left over belong to no client.
    """
    rng = np.random.default_rng(seed)
    names = sorted(set(topics))
    # With shuffled stacks, popping takes a random example of a topic.
    stacks = [
        rng.permutation([i for i, topic in enumerate(topics) if topic == name]).tolist()
        for name in names
    ]
    priors = rng.dirichlet([alpha] * len(names), size=clients)
    size = len(topics) // clients
    sets: list[list[int]] = [[] for _ in range(clients)]
    for _ in range(size * clients):
        roomy = [client for client in range(clients) if len(sets[client]) < size]
        client = roomy[int(rng.integers(len(roomy)))]
        available = np.array([bool(stack) for stack in stacks])
        weights = np.where(available, priors[client], 0.0)
        # A tiny alpha can leave a prior with no mass at all on the topics that are left.
        weights = weights if weights.sum() > 0 else available.astype(float)
        topic = int(rng.choice(len(names), p=weights / weights.sum()))
        sets[client].append(int(stacks[topic].pop()))
    return sets


# The share by which the paper's private sets may shrink. Its sizes need all 12,500 problems of
# MATH, but a few of those are duplicates or cannot be verified.
_SLACK = 0.01


@dataclass(frozen=True)
class Split:
    """Disjoint sets of problems: one private set for each client, a public one, a test one."""

    private: list[list[Problem]]
    public: list[Problem]
    test: list[Problem]

    def named(self) -> dict[str, list[Problem]]:
        """The sets by the names of their files, without the suffix."""
        private = {f"client-{n}": part for n, part in enumerate(self.private, start=1)}
        return {**private, "public": self.public, "test": self.test}


def quotas(sets: int, total: int) -> list[int]:
    """The number of problems to take from each set, `total` in all."""
    return [(total + number) // sets for number in range(sets)]


def fitted(spec: DataSpec, sizes: SplitSizes, available: Mapping[str, int]) -> SplitSizes:
    """The sizes, with private sets up to 1 % smaller if the paper's do not quite fit.

    `available` is the number of problems from each set. Raises InvalidSettings if too few.
    """
    usable = sum(available.values())
    if sizes.total(spec.clients) <= usable and min(sizes) > 0:
        return sizes
    private = (usable - sizes.public - sizes.test) // spec.clients
    if spec.private_size is None and private >= max(1, (1 - _SLACK) * sizes.private):
        return sizes._replace(private=private)
    raise InvalidSettings(
        f"private_size, public_size, test_size: {spec.clients} times {sizes.private} private, "
        f"{sizes.public} public and {sizes.test} test problems are {sizes.total(spec.clients)}, "
        f"but there are {usable} to use "
        f"({', '.join(f'{name} gave {count}' for name, count in available.items())}), "
        "and no set may be empty. Ask for smaller sets."
    )


def sample(problems: Sequence[Problem], count: int, *purpose: str) -> list[Problem]:
    """At most `count` problems in their order, drawn at random from their number and purpose."""
    if len(problems) <= count:
        return list(problems)
    chosen = rng_for(*purpose, len(problems)).choice(len(problems), count, replace=False)
    return [problems[index] for index in sorted(chosen.tolist())]


def divide(problems: Sequence[Problem], spec: DataSpec, sizes: SplitSizes) -> Split:
    """Divide a random selection of the problems.

    The test and public sets are drawn uniformly, so that they keep the distribution of topics; the
    rest goes to the clients by `dirichlet_split`.
    """
    rng = rng_for("data", spec.seed, "sets")
    order = rng.permutation(len(problems)).tolist()
    drawn = [problems[index] for index in order[: sizes.total(spec.clients)]]
    test, rest = drawn[: sizes.test], drawn[sizes.test :]
    public, pool = rest[: sizes.public], rest[sizes.public :]
    topics = [problem.topic for problem in pool]
    parts = dirichlet_split(topics, spec.clients, spec.alpha, spec.seed)
    return Split([[pool[index] for index in part] for part in parts], public, test)
