"""Which usable problems become a split's, and which set each of them is in."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pubswap_client.data.partition import dirichlet_split
from pubswap_client.data.spec import DataSpec, Sizes
from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.problems import Problem

# How much smaller the paper's private sets may be, so that its own sizes, which take all 12,500
# problems of MATH, are possible although a few are the same or cannot be verified.
_SLACK = 0.01
_CHUNK = 512

Check = Callable[[Sequence[Problem]], list[Problem]]


@dataclass(frozen=True)
class Split:
    """Disjoint sets of problems: one private set for each client, a public one, a test one."""

    private: list[list[Problem]]
    public: list[Problem]
    test: list[Problem]

    def named(self) -> dict[str, list[Problem]]:
        """The sets by the names of their files, without the ending."""
        private = {f"client-{n}": part for n, part in enumerate(self.private, start=1)}
        return {**private, "public": self.public, "test": self.test}


def quotas(shares: Sequence[float], total: int) -> list[int]:
    """How many problems each stream gives, in all `total`."""
    bounds = [round(sum(shares[:place]) * total) for place in range(len(shares))] + [total]
    return [upper - lower for lower, upper in itertools.pairwise(bounds)]


def take(problems: Iterator[Problem], quota: int, check: Check) -> Iterator[Problem]:
    """The first `quota` problems that `check` accepts, or as many as there are.

    Only as many are checked as are needed: to verify 100,000 answers takes long.
    """
    while more := list(itertools.islice(problems, min(quota, _CHUNK))):
        accepted = check(more)
        quota -= len(accepted)
        yield from accepted


def fitted(spec: DataSpec, sizes: Sizes, found: Mapping[str, int]) -> Sizes:
    """The sizes, with private sets up to 1 % smaller if the paper's do not quite fit.

    `found` is what each stream gave. Raises InvalidSettings if that is too little.
    """
    usable = sum(found.values())
    if sizes.total(spec.clients) <= usable and min(sizes) > 0:
        return sizes
    private = (usable - sizes.public - sizes.test) // spec.clients
    if spec.private_size is None and private >= max(1, (1 - _SLACK) * sizes.private):
        return sizes._replace(private=private)
    raise InvalidSettings(
        f"private_size, public_size, test_size: {spec.clients} times {sizes.private} private, "
        f"{sizes.public} public and {sizes.test} test problems are {sizes.total(spec.clients)}, "
        f"but there are {usable} to use "
        f"({', '.join(f'{name} gave {count}' for name, count in found.items())}), "
        "and no set may be empty. Ask for smaller sets."
    )


def divide(problems: Sequence[Problem], spec: DataSpec, sizes: Sizes) -> Split:
    """Divide a random choice of the problems.

    The test and public sets are drawn uniformly, so that they represent all topics as they are;
    the rest goes to the clients by `dirichlet_split`.
    """
    rng = rng_for("data", spec.seed, "sets")
    order = rng.permutation(len(problems)).tolist()
    drawn = [problems[index] for index in order[: sizes.total(spec.clients)]]
    test, rest = drawn[: sizes.test], drawn[sizes.test :]
    public, pool = rest[: sizes.public], rest[sizes.public :]
    topics = [problem.topic for problem in pool]
    parts = dirichlet_split(topics, spec.clients, spec.alpha, spec.seed)
    return Split([[pool[index] for index in part] for part in parts], public, test)
