"""Division of one data set between clients whose topics differ."""

from collections.abc import Sequence

import numpy as np


def dirichlet_split(
    topics: Sequence[str], clients: int, alpha: float, seed: int
) -> list[list[int]]:
    """Divide examples into equal client sets whose mixture of topics differs.

    The procedure of Acar et al., "Federated Learning Based on Dynamic Regularization" (ICLR
    2021): each client draws a prior over the topics from a symmetric Dirichlet(alpha). Then, until
    all sets are full, a client with room left is picked uniformly, draws a topic from its prior
    restricted to the topics that have examples left, and takes one example of that topic. A small
    alpha gives each client few topics; a large one gives all clients the same mixture.

    Args:
        topics: the topic of each of the n examples.
        clients: N, how many sets to make.
        alpha: the concentration of the Dirichlet priors.
        seed: the only source of randomness; the same arguments give the same sets.

    Returns:
        N disjoint lists of floor(n / N) indices into `topics`, in the order drawn. The n mod N
        examples left over belong to no client.

    Raises:
        ValueError: for fewer than one client, an alpha that is not positive and finite, or fewer
            examples than clients.
    """
    if clients < 1:
        raise ValueError(f"there must be at least one client, not {clients}")
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be positive and finite, not {alpha}")
    if len(topics) < clients:
        raise ValueError(f"{len(topics)} examples cannot be divided between {clients} clients")
    rng = np.random.default_rng(seed)
    names = sorted(set(topics))
    # Shuffled stacks make taking one random example of a topic a pop.
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
        left = np.array([bool(stack) for stack in stacks])
        weights = np.where(left, priors[client], 0.0)
        # A tiny alpha can leave a prior with no mass at all on the topics that are left.
        weights = weights if weights.sum() > 0 else left.astype(float)
        topic = int(rng.choice(len(names), p=weights / weights.sum()))
        sets[client].append(int(stacks[topic].pop()))
    return sets
