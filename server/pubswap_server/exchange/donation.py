"""The exchange of a public step (paper, section 3.4): each client's groups of responses.

Pure functions of the verdicts and the run's seed, so that asking again, on any replica, gives the
same answer.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.draws import rng_for

Strategy = Literal["keep", "random"]
Verdicts = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Choice:
    """One response of the pool: a client's response number `index`, from 0 to K-1."""

    client: str
    index: int


@dataclass(frozen=True, slots=True)
class Draw:
    """Slots (n,) in a receiver's group, and n or more peers' responses that may fill them."""

    slots: tuple[int, ...] = ()
    candidates: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Exchange:
    """A closed exchange: everything that decides who trains on which responses.

    `correct` maps each client to its verdicts (P, K); `prompts` (P,) are the prompts' positions in
    the public set. `donatable` (P, K) marks, by client, the responses short enough for a peer, by
    default all. No donor gives more than `max_donor_share` of a receiver's donated responses. A
    slot that a limit takes from a peer gets the receiver's own response. Without limits, the
    draws are the paper's. With `candidates`, the receiver chooses among that many for each slot.

    What all receivers share is computed once, so a receiver's groups cost the same however many
    clients there are.
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
        groups = [self._group(position, receiver) for position in range(len(self.prompts))]
        if self.max_donor_share >= 1:
            return groups
        rng = rng_for(self.seed, "share", self.round, self.swap, receiver)
        over = over_share(groups, receiver, self.max_donor_share, rng)
        return [with_own(group, slots, receiver) for group, slots in zip(groups, over, strict=True)]

    def draws(self, receiver: str) -> list[Draw]:
        """The candidates for `receiver`, for each of the P prompts, under `keep`.

        The places to fill are the same as without a choice.
        """
        return [self._draw(position, receiver) for position in range(len(self.prompts))]

    def gifts(self, receiver: str) -> Counter[str]:
        """The number of responses from each peer that a receiver got or was offered."""
        if self.candidates is not None:
            return Counter(c.client for draw in self.draws(receiver) for c in draw.candidates)
        donors = (choice.client for group in self.choices(receiver) for choice in group)
        return Counter(donor for donor in donors if donor != receiver)

    def replaced(self) -> dict[str, int]:
        """The number of peers' responses in each client's groups; alpha is this over P K.

        Unless a share limits donors, it follows from counts, without each client's draws.
        """
        if self.max_donor_share < 1:
            return {name: replaced(self.choices(name), name) for name in self._clients}
        if self.strategy == "random":
            drawn = [
                choice
                for position, group in enumerate(self._drawn)
                for choice in group
                if self._fits(choice, position)
            ]
            by_donor = Counter(choice.client for choice in drawn)
            return {name: len(drawn) - by_donor[name] for name in self._clients}
        lacking = self._right.shape[2] // 2 - self._right.sum(axis=2)
        eligible = self._eligible.sum(axis=2)
        counts = np.minimum(np.maximum(lacking, 0), eligible.sum(axis=0) - eligible).sum(axis=1)
        return dict(zip(self._clients, counts.tolist(), strict=True))

    @cached_property
    def _clients(self) -> list[str]:
        return sorted(self.correct)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {client: number for number, client in enumerate(self._clients)}

    @cached_property
    def _right(self) -> Verdicts:
        return np.stack([self.correct[client] for client in self._clients])

    @cached_property
    def _eligible(self) -> Verdicts:
        """The responses (N, P, K) that peers may get under `keep`: correct and short enough."""
        return np.stack(
            [self.correct[client] & self.donatable.get(client, True) for client in self._clients]
        )

    @cached_property
    def _pools(self) -> list[NDArray[np.int64]]:
        """For each prompt the eligible responses, as n K + k in ascending order."""
        return [
            np.flatnonzero(self._eligible[:, position]) for position in range(len(self.prompts))
        ]

    @cached_property
    def _drawn(self) -> list[list[Choice]]:
        """Under `random`, K of all N K responses to each prompt, uniform and the same for all."""
        clients, _, size = self._right.shape
        groups = []
        for prompt in self.prompts:
            rng = rng_for(self.seed, "random", self.round, self.swap, prompt)
            drawn = rng.choice(clients * size, size=size, replace=False)
            groups.append([self._choice(flat) for flat in drawn.tolist()])
        return groups

    def _choice(self, flat: int) -> Choice:
        number, index = divmod(flat, self._right.shape[2])
        return Choice(self._clients[number], index)

    def _fits(self, choice: Choice, position: int) -> bool:
        mask = self.donatable.get(choice.client)
        return mask is None or bool(mask[position][choice.index])

    def _group(self, position: int, receiver: str) -> list[Choice]:
        if self.strategy == "keep":
            verdicts = self.correct[receiver][position]
            return filled(verdicts, self._draw(position, receiver), receiver)
        group = self._drawn[position]
        unfit = [
            index
            for index, choice in enumerate(group)
            if choice.client != receiver and not self._fits(choice, position)
        ]
        return with_own(group, unfit, receiver)

    def _draw(self, position: int, receiver: str) -> Draw:
        """The receiver's responses to replace, and the peers' responses that may replace them.

        With c of K correct and c < K/2, up to K/2 - c incorrect ones, chosen uniformly, give place
        to correct ones drawn without replacement from the peers' pool; fewer if it holds fewer.
        For each slot, `candidates` are drawn, as far as the pool goes.
        """
        verdicts, pool = self.correct[receiver][position], self._pools[position]
        size = len(verdicts)
        first = self._numbers[receiver] * size
        begin, end = np.searchsorted(pool, (first, first + size)).tolist()
        peers = len(pool) - (end - begin)
        count = min(size // 2 - int(verdicts.sum()), peers)
        if count <= 0:
            return Draw()
        prompt = self.prompts[position]
        rng = rng_for(self.seed, "keep", self.round, self.swap, prompt, receiver)
        slots = rng.choice(np.flatnonzero(~verdicts), size=count, replace=False)
        candidate_count = min((self.candidates or 1) * count, peers)
        donors = rng.choice(peers, size=candidate_count, replace=False)
        # Skip the receiver's own responses, which are between `begin` and `end`.
        flats = pool[np.where(donors < begin, donors, donors + (end - begin))]
        return Draw(tuple(slots.tolist()), tuple(self._choice(flat) for flat in flats.tolist()))


def filled(verdicts: Verdicts, drawn: Draw, receiver: str) -> list[Choice]:
    """The receiver's own K responses, with the first candidates in the drawn slots."""
    group = [Choice(receiver, index) for index in range(len(verdicts))]
    for index, choice in zip(drawn.slots, drawn.candidates, strict=False):
        group[index] = choice
    return group


def over_share(
    groups: Sequence[Sequence[Choice]], receiver: str, max_share: float, rng: np.random.Generator
) -> list[list[int]]:
    """The slots in each group to take from donors that would give too large a share.

    With T donated responses left, a donor gives at most floor(max_share T). T is the largest number
    for which that holds once the excess, drawn uniformly from a donor's slots, is gone.
    """
    slots: dict[str, list[tuple[int, int]]] = {}
    for position, group in enumerate(groups):
        for index, choice in enumerate(group):
            if choice.client != receiver:
                slots.setdefault(choice.client, []).append((position, index))
    limit = _donor_limit([len(donated) for donated in slots.values()], max_share)
    over: list[list[int]] = [[] for _ in groups]
    for donor in sorted(slots):
        donated = slots[donor]
        excess = max(0, len(donated) - limit)
        for drawn in rng.permutation(len(donated))[:excess] if excess else ():
            position, index = donated[int(drawn)]
            over[position].append(index)
    return over


def _donor_limit(counts: Sequence[int], max_share: float) -> int:
    total = sum(counts)
    while True:
        # A share such as 1/3 of 3 must be 1, however it is rounded.
        limit = math.floor(max_share * total + 1e-9)
        remaining = sum(min(count, limit) for count in counts)
        if remaining == total:
            return limit
        total = remaining


def with_own(group: Sequence[Choice], slots: Sequence[int], receiver: str) -> list[Choice]:
    """The group with the receiver's own responses in these slots, none of them twice.

    A response that `keep` replaced returns to its slot; otherwise the lowest unused index comes.
    """
    retained = {choice for index, choice in enumerate(group) if index not in slots}
    changed = list(group)
    unused = [c for c in (Choice(receiver, k) for k in range(len(group))) if c not in retained]
    for index in sorted(slots):
        original = Choice(receiver, index)
        changed[index] = original if original in unused else unused[0]
        unused.remove(changed[index])
    return changed


def replaced(choices: Sequence[Sequence[Choice]], receiver: str) -> int:
    """The number of responses in the receiver's groups that are from peers."""
    return sum(choice.client != receiver for group in choices for choice in group)
