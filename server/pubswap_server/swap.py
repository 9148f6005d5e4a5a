"""The exchange of a public step (paper, section 3.4): who trains on which responses.

Pure functions of the verdicts and the run's seed, so that asking again, on any replica, gives the
same answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Draw:
    """Places (n,) of a receiver's group, and what may fill them: n peers' responses or more."""

    places: tuple[int, ...] = ()
    candidates: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A closed exchange: everything that decides who trains on which responses.

    `correct` maps each client to its verdicts (P, K); `prompts` (P,) are the prompts' positions in
    the public set. `donatable` (P, K) tells by client which responses are short enough for a peer,
    all by default; no donor gives more than `max_donor_share` of a receiver's donated responses. A
    place that a limit takes from a peer is the receiver's own. Without limits the draws are the
    paper's. With `candidates`, so many for each place, the receiver chooses among them.
    """

    strategy: Strategy
    seed: int
    round: int
    swap: int
    prompts: Sequence[int]
    correct: Mapping[str, Verdicts]
    donatable: Mapping[str, Verdicts] = field(default_factory=dict)
    max_donor_share: float = 1.0
    candidates: int | None = None

    def choices(self, receiver: str) -> list[list[Choice]]:
        """The P groups of K responses that `receiver`, one of the clients, trains on."""
        clients = sorted(self.correct)
        groups = [
            self._group(clients, position, prompt, receiver)
            for position, prompt in enumerate(self.prompts)
        ]
        if self.max_donor_share >= 1:
            return groups
        rng = rng_for(self.seed, "share", self.round, self.swap, receiver)
        over = over_share(groups, receiver, self.max_donor_share, rng)
        return [
            with_own(group, places, receiver) for group, places in zip(groups, over, strict=True)
        ]

    def draws(self, receiver: str) -> list[Draw]:
        """What `receiver` may choose from for each of the P prompts, under `keep`.

        Which places are filled, and so how many, is what it would be without a choice.
        """
        return [self._draw(place, prompt, receiver) for place, prompt in enumerate(self.prompts)]

    def _draw(self, position: int, prompt: int, receiver: str) -> Draw:
        rng = rng_for(self.seed, "keep", self.round, self.swap, prompt, receiver)
        pool = {
            client: verdicts[position] & self.donatable[client][position]
            if client in self.donatable
            else verdicts[position]
            for client, verdicts in sorted(self.correct.items())
            if client != receiver
        }
        return draw(self.correct[receiver][position], pool, rng, self.candidates or 1)

    def _group(
        self, clients: Sequence[str], position: int, prompt: int, receiver: str
    ) -> list[Choice]:
        if self.strategy == "keep":
            own = self.correct[receiver][position]
            return filled(own, self._draw(position, prompt, receiver), receiver)
        verdicts = {client: self.correct[client][position] for client in clients}
        fit = {client: mask[position] for client, mask in self.donatable.items()}
        group = random(verdicts, rng_for(self.seed, "random", self.round, self.swap, prompt))
        unfit = [
            place
            for place, choice in enumerate(group)
            if choice.client in fit
            and choice.client != receiver
            and not fit[choice.client][choice.index]
        ]
        return with_own(group, unfit, receiver)


def draw(
    own: Verdicts, peers: Mapping[str, Verdicts], rng: np.random.Generator, candidates: int = 1
) -> Draw:
    """Which of a receiver's responses give place, and which of its peers' may come.

    With c of K correct and c < K/2, up to K/2 - c incorrect ones (which: uniform) give place to
    correct ones drawn without replacement from the peers' pool; fewer if the pool holds fewer.
    `own` (K,) are the receiver's verdicts, `peers` (K,) those of each peer's that may be drawn.
    For each place `candidates` are drawn, as far as the pool goes.
    """
    wanted = len(own) // 2 - int(own.sum())
    if wanted <= 0 or not peers:
        return Draw()
    # The pool is all True of this table (peers, K), row by row; it is not spelled out.
    names, pool = list(peers), np.flatnonzero(np.stack(list(peers.values())))
    count = min(wanted, len(pool))
    if count == 0:
        return Draw()
    places = rng.choice(np.flatnonzero(~own), size=count, replace=False)
    donated = rng.choice(len(pool), size=min(candidates * count, len(pool)), replace=False)
    found = (divmod(int(pool[donor]), len(own)) for donor in donated)
    return Draw(
        tuple(int(place) for place in places),
        tuple(Choice(names[peer], index) for peer, index in found),
    )


def filled(own: Verdicts, drawn: Draw, receiver: str) -> list[Choice]:
    """The receiver's own K responses with the first candidates in the places."""
    group = [Choice(receiver, index) for index in range(len(own))]
    for place, choice in zip(drawn.places, drawn.candidates, strict=False):
        group[place] = choice
    return group


def random(verdicts: Mapping[str, Verdicts], rng: np.random.Generator) -> list[Choice]:
    """K responses drawn uniformly without replacement from all N K, the same for every client."""
    pool = [
        Choice(client, index) for client, theirs in verdicts.items() for index in range(len(theirs))
    ]
    size = len(next(iter(verdicts.values())))
    return [pool[int(place)] for place in rng.choice(len(pool), size=size, replace=False)]


def over_share(
    groups: Sequence[Sequence[Choice]],
    receiver: str,
    max_share: float,
    rng: np.random.Generator,
) -> list[list[int]]:
    """The places of each group that are taken from donors who would give too large a share.

    With T donated responses left, a donor gives at most floor(max_share T); T is the largest number
    for which that holds once the excess, drawn uniformly from a donor's places, is gone.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for position, group in enumerate(groups):
        for place, choice in enumerate(group):
            if choice.client != receiver:
                places.setdefault(choice.client, []).append((position, place))
    most = _most_per_donor([len(theirs) for theirs in places.values()], max_share)
    over: list[list[int]] = [[] for _ in groups]
    for donor in sorted(places):
        theirs = places[donor]
        excess = max(0, len(theirs) - most)
        for drawn in rng.permutation(len(theirs))[:excess] if excess else ():
            position, place = theirs[int(drawn)]
            over[position].append(place)
    return over


def _most_per_donor(counts: Sequence[int], max_share: float) -> int:
    total = sum(counts)
    while True:
        # A share such as 1/3 of 3 is 1, whatever its rounding.
        most = math.floor(max_share * total + 1e-9)
        left = sum(min(count, most) for count in counts)
        if left == total:
            return most
        total = left


def with_own(group: Sequence[Choice], places: Sequence[int], receiver: str) -> list[Choice]:
    """The group with the receiver's own responses at these places, none of them twice.

    The one that `keep` replaced comes back where it was; otherwise those of the lowest index come.
    """
    kept = {choice for place, choice in enumerate(group) if place not in places}
    changed = list(group)
    unused = [c for c in (Choice(receiver, k) for k in range(len(group))) if c not in kept]
    for place in sorted(places):
        own = Choice(receiver, place)
        changed[place] = own if own in unused else unused[0]
        unused.remove(changed[place])
    return changed


def replaced(choices: Sequence[Sequence[Choice]], receiver: str) -> int:
    """How many of the receiver's responses are a peer's; alpha is this over P K."""
    return sum(choice.client != receiver for group in choices for choice in group)
