"""LoRA factors by module: which of them are sent, and stacks of them of any rank.

A *stack* is an adapter file with a run's names whose ranks are its own: with the run's alpha / r,
each module's product B A is what is added to the base model's weight.
"""

from collections.abc import Mapping
from pathlib import Path

from pubswap_protocol.adapter import AdapterFile, AdapterLayout
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.tensors import header_length, parse_header

_A, _B = ".lora_A.weight", ".lora_B.weight"


def is_a(name: str) -> bool:
    """Whether a tensor is an A, of shape (rank, in); the others are B, of shape (out, rank)."""
    return name.endswith(_A)


def modules(layout: AdapterLayout) -> list[tuple[str, str]]:
    """The names of each module's A and B, in the order of the names."""
    return [(name, name.removesuffix(_A) + _B) for name in sorted(layout.tensors) if is_a(name)]


def sent_layout(layout: AdapterLayout, rule: str) -> AdapterLayout:
    """What a client sends in a round: everything, or under FFA-LoRA the B alone."""
    if rule != "ffa":
        return layout
    return AdapterLayout(tensors={n: shape for n, shape in layout.tensors.items() if not is_a(n)})


def stack_layout(layout: AdapterLayout, ranks: Mapping[str, int]) -> AdapterLayout:
    """The run's layout with other ranks, by the name of the module's A."""
    tensors = {}
    for a, b in modules(layout):
        tensors[a] = (ranks[a], layout.tensors[a][1])
        tensors[b] = (layout.tensors[b][0], ranks[a])
    return AdapterLayout(tensors=tensors)


def open_stack(path: Path, layout: AdapterLayout) -> AdapterFile:
    """A stack for a run with this layout; raises InvalidAdapter unless it fits its modules."""
    with path.open("rb") as file:
        specs = parse_header(file.read(header_length(file.read(8))))
    ranks = {}
    for a, _ in modules(layout):
        if a not in specs or len(specs[a].shape) != 2:
            raise InvalidAdapter(f"The stack has no matrix {a!r}.")
        ranks[a] = specs[a].shape[0]
    return AdapterFile(path, stack_layout(layout, ranks))
