"""The face of a strategy, and the registry of all."""

from collections import Counter
from collections.abc import Iterator, Sequence

from pubswap_protocol.methods.registry import Registrable, Registry
from pubswap_protocol.methods.strategies.pool import Choice, Pool


class Strategy(Registrable):
    """The responses that a client trains on in a public step.

    A pure function of the pool, whose draws have keys, so that asking again, on any replica, gives
    the same answer. Responses that peers may not get give place to the receiver's own, whatever
    the strategy.
    """

    def group(self, pool: Pool, position: int, receiver: str) -> list[Choice]:
        """The K responses to the prompt at `position` that `receiver` shall train on."""
        raise NotImplementedError

    def allowed(self, pool: Pool, position: int, receiver: str) -> list[Choice]:
        """The group, with the receiver's own responses for those that peers may not get."""
        group = self.group(pool, position, receiver)
        unfit = [
            index
            for index, choice in enumerate(group)
            if choice.client != receiver and not pool.may_get(choice, position)
        ]
        return _with_own(group, unfit, receiver) if unfit else group

    def impossible(self, responses: int) -> Iterator[str]:
        """Why it is impossible with K = `responses`, with advice."""
        yield from ()

    def choices(self, pool: Pool, receiver: str) -> list[list[Choice]]:
        """A receiver's groups, for all P prompts."""
        return [self.allowed(pool, position, receiver) for position in range(len(pool.prompts))]

    def gifts(self, pool: Pool, receiver: str) -> Counter[str]:
        """The number of responses from each peer in a receiver's groups."""
        donors = (choice.client for group in self.choices(pool, receiver) for choice in group)
        return Counter(donor for donor in donors if donor != receiver)

    def replaced(self, pool: Pool) -> dict[str, int]:
        """The number of peers' responses in each client's groups; alpha is this over P K."""
        return {client: self.gifts(pool, client).total() for client in pool.clients}


STRATEGIES = Registry[Strategy]("strategy", default="keep")


def _with_own(group: Sequence[Choice], slots: Sequence[int], receiver: str) -> list[Choice]:
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
