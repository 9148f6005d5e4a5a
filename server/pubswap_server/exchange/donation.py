"""The exchange of a public step (paper, section 3.4): each client's groups of responses.

Pure functions of the verdicts and the run's seed, so that asking again, on any replica, gives the
same answer.
"""

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


@dataclass(frozen=True)
class Exchange:
    """A closed exchange: everything that decides who trains on which responses.

    `correct` maps each client to its verdicts (P, K); `prompts` (P,) are the prompts' positions in
    the public set. `donatable` (P, K) marks, by client, the responses that peers may get, by
    default all: then the draws are the paper's.

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

    def choices(self, receiver: str) -> list[list[Choice]]:
        """The P groups of K responses that `receiver`, one of the clients, trains on."""
        group = self._kept if self.strategy == "keep" else self._shared
        return [group(position, receiver) for position in range(len(self.prompts))]

    def gifts(self, receiver: str) -> Counter[str]:
        """The number of responses from each peer in a receiver's groups."""
        donors = (choice.client for group in self.choices(receiver) for choice in group)
        return Counter(donor for donor in donors if donor != receiver)

    def replaced(self) -> dict[str, int]:
        """The number of peers' responses in each client's groups; alpha is this over P K.

        It follows from counts, without each client's draws.
        """
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

    def _kept(self, position: int, receiver: str) -> list[Choice]:
        """The group under `keep`: the receiver's own, with correct ones for some of its wrong ones.

        With c of K correct and c < K/2, up to K/2 - c incorrect ones, chosen uniformly, give place
        to correct ones drawn without replacement from the peers' pool; fewer if it holds fewer.
        """
        verdicts, pool = self.correct[receiver][position], self._pools[position]
        size = len(verdicts)
        group = [Choice(receiver, index) for index in range(size)]
        first = self._numbers[receiver] * size
        begin, end = np.searchsorted(pool, (first, first + size)).tolist()
        peers = len(pool) - (end - begin)
        count = min(size // 2 - int(verdicts.sum()), peers)
        if count <= 0:
            return group
        prompt = self.prompts[position]
        rng = rng_for(self.seed, "keep", self.round, self.swap, prompt, receiver)
        slots = rng.choice(np.flatnonzero(~verdicts), size=count, replace=False)
        donors = rng.choice(peers, size=count, replace=False)
        # Skip the receiver's own responses, which are between `begin` and `end`.
        flats = pool[np.where(donors < begin, donors, donors + (end - begin))]
        for slot, flat in zip(slots.tolist(), flats.tolist(), strict=True):
            group[slot] = self._choice(flat)
        return group

    def _shared(self, position: int, receiver: str) -> list[Choice]:
        """The group under `random`: the same for all, but peers' responses that do not fit."""
        group = self._drawn[position]
        unfit = [
            index
            for index, choice in enumerate(group)
            if choice.client != receiver and not self._fits(choice, position)
        ]
        return with_own(group, unfit, receiver)


def with_own(group: Sequence[Choice], slots: Sequence[int], receiver: str) -> list[Choice]:
    """The group with the receiver's own responses in these slots, none of them twice.

    The response of a slot's own index comes first, otherwise the lowest unused one.
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
