"""What the makers say of their GPUs."""

from typing import NamedTuple


class Card(NamedTuple):
    """A part of the GPU's name, FLOP/s of dense bfloat16 products, and the memory's bytes/s."""

    name: str
    flops: float
    bandwidth: float


CARDS = (
    Card("B200", 2250e12, 8.0e12),
    Card("GH200", 989e12, 4.9e12),
    Card("H200", 989e12, 4.8e12),
    Card("H100 PCIe", 756e12, 2.0e12),
    Card("H100", 989e12, 3.35e12),
    Card("A100", 312e12, 2.0e12),
    Card("L40S", 362e12, 0.864e12),
    Card("RTX 4090", 165e12, 1.008e12),
    Card("L4", 121e12, 0.3e12),
)
"""The first whose name is in the device's is meant."""


def card_of(device: str) -> Card | None:
    """A GPU by the name that its driver gives; None for one that is not listed, or a CPU."""
    return next((card for card in CARDS if card.name in device), None)
