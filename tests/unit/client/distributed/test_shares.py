"""The division of a rollout among processes."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pubswap_client.distributed.process_group import Generate, generate_together
from pubswap_client.rollout.transformers_engine import SamplingParameters


@dataclass
class Group:
    """A fake process group; the other processes' parts come from `parts`."""

    rank: int
    size: int
    parts: list[Any] = field(default_factory=list)
    lockstep: bool = False

    def gather(self, mine: Any) -> list[Any]:
        self.parts.append(mine)
        return self.parts


class Engine:
    """A fake engine whose responses contain the prompt and its index."""

    def generate(self, prompts: Any, _: Any, first: int = 0) -> list[Any]:
        return [[(first + index, *prompt)] for index, prompt in enumerate(prompts)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("sharded", [False, True])
def test_each_prompt_is_sampled_by_one_process_at_its_place(size: int, sharded: bool) -> None:
    """For any number of processes, even more than there are prompts.

    The transformers engine on a sharded policy is an exception: every process samples everything.
    """
    prompts = [[10], [11], [12], [13], [14]]
    command = Generate(prompts, SamplingParameters(1, 8, 0.7, 1))
    parts: list[Any] = []
    for rank in range(size):
        group = Group(rank, size, parts, lockstep=sharded)
        together = generate_together(cast("Any", group), cast("Any", Engine()), command)
    assert together == [[(index, *prompt)] for index, prompt in enumerate(prompts)]
    assert max(map(len, parts)) == -(-len(prompts) // size)
