"""The results of a side's update or step, and a clock that waits for the GPU."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from pubswap_protocol.tensors.adapter import Adapter


class Clock:
    """Seconds, read after all work queued on the device is done.

    `source` may be time.process_time instead: with one thread, it is the time that a side would
    take alone, even while other processes use the same cores.
    """

    source: ClassVar[Callable[[], float]] = time.perf_counter

    def __init__(self, device: torch.device) -> None:
        """Wait for work on `device`."""
        self._device = device

    def __call__(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return Clock.source()


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one step: until the tokens are known, and then to the last optimizer step."""

    rollout: float
    update: float

    @property
    def step(self) -> float:
        """Both phases."""
        return self.rollout + self.update


@dataclass(frozen=True, slots=True)
class Outcome:
    """One update: its times, means over its epochs, and the resulting factors."""

    times: Times
    loss: float
    grad_norm: float
    adapter: Adapter


def matmul_rate(device: torch.device, size: int | None = None) -> float:
    """FLOP/s of a square matrix product: float32 on a CPU, bfloat16 on a GPU; best of ten."""
    gpu = device.type == "cuda"
    size = size or (8192 if gpu else 1536)
    dtype = torch.bfloat16 if gpu else torch.float32
    left, right = (torch.randn((size, size), device=device, dtype=dtype) for _ in range(2))
    clock = Clock(device)
    torch.mm(left, right)
    best = float("inf")
    for _ in range(10):
        started = clock()
        torch.mm(left, right)
        best = min(best, clock() - started)
    return 2 * size**3 / best
