"""One decode step over shapes and addresses that stay: what a CUDA graph can record and replay.

A step of a small model is thousands of kernels, and launching them takes longer than they do.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pubswap_client.rollout.kv_cache import Cursor

WINDOW = 512  # keys that a step attends to, in multiples of this: each multiple is one recording


class StaticStep:
    """Tokens (B,) in, logits (B, V) out; the next call overwrites the logits.

    Good while the cursor is inside the `window` and no row has left the cache.
    """

    def __init__(
        self, model: Any, cache: Any, cursor: Cursor, mask: Tensor, positions: Tensor
    ) -> None:
        """Take a plain cache (`is_plain`) whose next tokens have these positions (B, 1).

        `mask` (B, capacity) is 0 on padding.
        """
        self.model = model
        self.cache = cache
        self.cursor = cursor
        capacity, device = mask.shape[1], mask.device
        self.window = min(capacity, WINDOW * (cursor.length // WINDOW + 1))
        self.place = torch.tensor([cursor.length], device=device)
        self.tokens = torch.zeros_like(positions)
        self.positions = positions.clone()
        self._filled = mask[:, None, None, : self.window].bool()
        self._columns = torch.arange(self.window, device=device)
        self._run: Callable[[], Tensor] = self._forward
        for layer in cache.layers:
            layer.clear(self.window)

    def __call__(self, tokens: Tensor) -> Tensor:
        self.tokens.copy_(tokens[:, None])
        self.cursor.place, self.cursor.window = self.place, self.window
        try:
            logits = self._run()
        finally:
            self.cursor.place = None
        self.cursor.length += 1
        self.place += 1
        self.positions += 1
        return logits

    def record(self) -> None:
        """Replay a CUDA graph from now on; raises what CUDA raises where that cannot be.

        Recording computes nothing, so that a step must have been called before, which also loads
        the libraries.
        """
        self.cursor.place, self.cursor.window = self.place, self.window
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may go on using the GPU, such as one that copies a checkpoint.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                logits = self._forward()
        finally:
            self.cursor.place = None

        def replay() -> Tensor:
            graph.replay()
            return logits

        self._run = replay

    def _forward(self) -> Tensor:
        output = self.model(
            input_ids=self.tokens,
            # In four dimensions the model takes it as it is, and nothing is asked of the device.
            attention_mask=self._filled & (self._columns <= self.place),
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits
