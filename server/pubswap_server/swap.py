"""The exchange of a public step (paper, section 3.4): who trains on which responses.

Pure functions of the verdicts and the run's seed, so that asking again, on any replica, gives the
same answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.draws import rng_for

Strategy = Literal["keep", "random"]
Verdicts = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Choice:
    """One response of the pool: the index-th (0..K-1) of a client's."""

    client: str
    index: int


def exchange(
    strategy: Strategy,
    correct: Mapping[str, Verdicts],
    receiver: str,
    seed: int,
    round_: int,
    swap: int,
    prompts: Sequence[int],
) -> list[list[Choice]]:
    """The P groups of K responses that `receiver` trains on.

    `correct` maps each client of the exchange to its verdicts (P, K); `prompts` (P,) are the
    prompts' positions in the public set. The receiver must be one of the clients.
    """
    groups = []
    for position, prompt in enumerate(prompts):
        verdicts = {client: correct[client][position] for client in sorted(correct)}
        if strategy == "keep":
            rng = rng_for(seed, "keep", round_, swap, prompt, receiver)
            groups.append(keep(verdicts, receiver, rng))
        else:
            groups.append(random(verdicts, rng_for(seed, "random", round_, swap, prompt)))
    return groups


def keep(verdicts: Mapping[str, Verdicts], receiver: str, rng: np.random.Generator) -> list[Choice]:
    """The receiver's own K responses, topped up with peers' correct ones to at most half.

    With c of K correct and c < K/2, up to K/2 - c incorrect ones (which: uniform) give place to
    correct ones drawn without replacement from the peers' pool; fewer if the pool holds fewer.
    """
    own = verdicts[receiver]
    group = [Choice(receiver, index) for index in range(len(own))]
    pool = [
        Choice(client, int(index))
        for client, theirs in verdicts.items()
        if client != receiver
        for index in np.flatnonzero(theirs)
    ]
    count = min(len(own) // 2 - int(own.sum()), len(pool))
    if count <= 0:
        return group
    places = rng.choice(np.flatnonzero(~own), size=count, replace=False)
    donated = rng.choice(len(pool), size=count, replace=False)
    for place, donor in zip(places, donated, strict=True):
        group[int(place)] = pool[int(donor)]
    return group


def random(verdicts: Mapping[str, Verdicts], rng: np.random.Generator) -> list[Choice]:
    """K responses drawn uniformly without replacement from all N K, the same for every client."""
    pool = [
        Choice(client, index) for client, theirs in verdicts.items() for index in range(len(theirs))
    ]
    size = len(next(iter(verdicts.values())))
    return [pool[int(place)] for place in rng.choice(len(pool), size=size, replace=False)]


def replaced(choices: Sequence[Sequence[Choice]], receiver: str) -> int:
    """How many of the receiver's responses are a peer's; alpha is this over P K."""
    return sum(choice.client != receiver for group in choices for choice in group)
