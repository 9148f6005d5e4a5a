"""What a closed exchange has to give: everybody's responses to its prompts, and the verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pubswap_protocol.draws import rng_for

Verdicts = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Choice:
    """One response of the pool: a client's response number `index`, from 0 to K-1."""

    client: str
    index: int


@dataclass(frozen=True)
class Pool:
    """A closed exchange of N clients, P prompts and K responses to each.

    `correct` maps each client to its verdicts (P, K); `prompts` (P,) are the prompts' positions in
    the public set. `donatable` (P, K) marks, by client, the responses that peers may get, by
    default all. What all receivers share is computed once, so a receiver's groups cost the same
    however many clients there are.
    """

    seed: int
    round: int
    public_step: int
    prompts: Sequence[int]
    correct: Mapping[str, Verdicts]
    donatable: Mapping[str, Verdicts] = field(default_factory=dict)

    @cached_property
    def clients(self) -> list[str]:
        return sorted(self.correct)

    @cached_property
    def right(self) -> Verdicts:
        """The verdicts (N, P, K), in the order of `clients`."""
        return np.stack([self.correct[client] for client in self.clients])

    @cached_property
    def eligible(self) -> Verdicts:
        """The responses (N, P, K) that peers may get and that are correct."""
        return np.stack(
            [self.correct[client] & self.donatable.get(client, True) for client in self.clients]
        )

    @cached_property
    def correct_ones(self) -> list[NDArray[np.int64]]:
        """For each prompt the eligible responses, as n K + k in ascending order."""
        return [np.flatnonzero(self.eligible[:, position]) for position in range(len(self.prompts))]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Each client's n."""
        return {client: number for number, client in enumerate(self.clients)}

    def choice(self, flat: int) -> Choice:
        """The response n K + k."""
        number, index = divmod(flat, self.right.shape[2])
        return Choice(self.clients[number], index)

    def own(self, receiver: str) -> list[Choice]:
        """A client's own group."""
        return [Choice(receiver, index) for index in range(self.right.shape[2])]

    def may_get(self, choice: Choice, position: int) -> bool:
        """Whether peers may get a response."""
        mask = self.donatable.get(choice.client)
        return mask is None or bool(mask[position][choice.index])

    def rng(self, word: str, position: int, receiver: str | None = None) -> np.random.Generator:
        """The draws for a prompt, or one client's; `word` keeps strategies apart."""
        key = (self.seed, word, self.round, self.public_step, self.prompts[position])
        return rng_for(*key) if receiver is None else rng_for(*key, receiver)
