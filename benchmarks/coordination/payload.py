"""The payload: an adapter of 392 tensors, with each client's update as one file of numbers.

Only numpy is imported, because Flower's and NVFlare's environments import this module too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

LAYERS = 28
RANK = 16
# Inputs and outputs of the linear layers of a Qwen2.5-1.5B, before they are scaled to a size.
MODULES = {
    "self_attn.q_proj": (1536, 1536),
    "self_attn.k_proj": (1536, 256),
    "self_attn.v_proj": (1536, 256),
    "self_attn.o_proj": (1536, 1536),
    "mlp.gate_proj": (1536, 8960),
    "mlp.up_proj": (1536, 8960),
    "mlp.down_proj": (8960, 1536),
}
TOLERANCE = 1e-5


def shapes(megabytes: float) -> dict[str, tuple[int, int]]:
    """Names and shapes of an all-linear rank-16 adapter of about `megabytes` 10^6 bytes, float32.

    28 layers x 7 modules x (A, B) = 392 tensors, in the order of their names.
    """
    full = 4 * LAYERS * RANK * sum(inputs + outputs for inputs, outputs in MODULES.values())
    scale = megabytes * 1e6 / full
    by_name = {}
    for layer in range(LAYERS):
        for module, widths in MODULES.items():
            inputs, outputs = (max(1, round(width * scale)) for width in widths)
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            by_name[f"{prefix}.lora_A.weight"] = (RANK, inputs)
            by_name[f"{prefix}.lora_B.weight"] = (outputs, RANK)
    return dict(sorted(by_name.items()))


def tensors(numbers: Array, megabytes: float) -> dict[str, Array]:
    """All numbers of an adapter as its named tensors, without a copy."""
    views, begin = {}, 0
    for name, (rows, columns) in shapes(megabytes).items():
        views[name] = numbers[begin : begin + rows * columns].reshape(rows, columns)
        begin += rows * columns
    assert begin == numbers.size
    return views


def error(received: Mapping[str, Any], expected: Array, megabytes: float) -> float:
    """The largest difference of any number of an adapter from the expected one."""
    expected_tensors = tensors(expected, megabytes)
    assert received.keys() == expected_tensors.keys(), (
        "the tensors received are not those that were sent"
    )
    return max(
        float(np.abs(np.asarray(received[name]) - expected_tensors[name]).max())
        for name in expected_tensors
    )


@dataclass(frozen=True, slots=True)
class Payload:
    """One adapter's size, and the files of the clients' updates and of their mean."""

    megabytes: float
    clients: int
    folder: Path

    @property
    def name(self) -> str:
        """The name of the size, such as '4 x 35 MB'."""
        return f"{self.clients} x {self.megabytes:g} MB"

    @property
    def parameters(self) -> int:
        """Number of an adapter's parameters."""
        return sum(rows * columns for rows, columns in shapes(self.megabytes).values())

    def update(self, client: int) -> Path:
        """The file of a client's update."""
        return self.folder / f"update-{client}.npy"

    @property
    def mean(self) -> Path:
        """The file of the updates' mean, summed in float64 and rounded once."""
        return self.folder / "mean.npy"

    def write(self) -> "Payload":
        """Draw the updates, and write them and their mean."""
        self.folder.mkdir(parents=True, exist_ok=True)
        total = np.zeros(self.parameters, dtype=np.float64)
        for client in range(self.clients):
            rng = np.random.default_rng(client)
            numbers = rng.standard_normal(self.parameters, dtype=np.float32)
            total += numbers
            np.save(self.update(client), numbers)
        np.save(self.mean, (total / self.clients).astype(np.float32))
        return self
