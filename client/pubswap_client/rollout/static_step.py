"""A decode step with fixed shapes and addresses, so that a CUDA graph can record and replay it.

A small model's step is thousands of kernels, and launching them takes longer than running them.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pubswap_client.policy.attention import HARMLESS, attending_by
from pubswap_client.rollout.kv_cache import Cursor, cache_name

# Without the fused kernel, a step attends to a multiple of this many keys, and each multiple is
# recorded once.
WINDOW = 512


class StaticStep:
    """Tokens (B,) in, logits (B, V) out; the next call overwrites the logits.

    Valid while the cursor is inside the `window` and no row has been dropped from the cache.
    """

    def __init__(
        self,
        model: Any,
        cache: Any,
        cursor: Cursor,
        mask: Tensor,
        positions: Tensor,
        fused: bool = False,
    ) -> None:
        """Decode on a plain cache (`is_plain`) whose next tokens have these positions (B, 1).

        `mask` (B, capacity) is 0 on padding, which is on the left. `fused` needs Triton.
        """
        self.model = model
        self.cache = cache
        self.cache_name = cache_name(model)
        self.cursor = cursor
        capacity, device = mask.shape[1], mask.device
        self.fused = fused
        self.window = capacity
        if not fused:
            self.window = min(capacity, WINDOW * (cursor.length // WINDOW + 1))
        self.slot = torch.tensor([cursor.length], device=device)
        self.tokens = torch.zeros_like(positions)
        self.positions = positions.clone()
        self._first = (cursor.length - positions).squeeze(1)
        self._filled = mask[:, None, None, : self.window].bool()
        self._columns = torch.arange(self.window, device=device)
        # None until recorded. A bound method here would be a cycle and keep the cache alive.
        self._replay: Callable[[], Tensor] | None = None
        if not fused:
            for layer in cache.layers:
                layer.clear(self.window)

    def __call__(self, tokens: Tensor) -> Tensor:
        self.tokens.copy_(tokens[:, None])
        logits = self._forward() if self._replay is None else self._replay()
        self.cursor.length += 1
        self.slot += 1
        self.positions += 1
        return logits

    def unwaiting(self, tokens: Tensor) -> Tensor:
        """Run a step, but raise if it waits for the device, as some expert layers do.

        Try this before recording, because a failed recording leaves torch's allocator in recording
        mode for good: it then frees nothing, and raises if told to.
        """
        previous = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is a prototype feature", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        try:
            return self(tokens)
        finally:
            torch.cuda.set_sync_debug_mode(previous)

    def record(self) -> None:
        """Record a CUDA graph and replay it from now on. Raises CUDA's error if that fails.

        Recording computes nothing, so call a step first. That also loads the libraries.
        """
        graph = torch.cuda.CUDAGraph()
        # Other threads may keep using the GPU, such as one that copies a checkpoint.
        # A failed recording leaves its own stream current, so restore the outer one.
        stream = torch.cuda.stream(torch.cuda.current_stream())
        with stream, torch.cuda.graph(graph, capture_error_mode="thread_local"):
            logits = self._forward()

        def replay() -> Tensor:
            graph.replay()
            return logits

        self._replay = replay

    def _forward(self) -> Tensor:
        # An additive mask, because each layer would convert a boolean one. In four dimensions it is
        # used as it is, without waiting for the device.
        hidden = ~(self._filled & (self._columns <= self.slot))
        dtype = self.model.dtype
        attention = fused_attention if self.fused else decode_attention
        seen = {"first": self._first, "last": self.slot} if self.fused else {}
        # The cache writes to `slot` and returns the window.
        self.cursor.slot, self.cursor.window = self.slot, self.window
        try:
            with attending_by(attention, self.model.get_base_model().get_decoder()):
                output = self.model(
                    input_ids=self.tokens,
                    attention_mask=hidden.to(dtype) * torch.finfo(dtype).min,
                    position_ids=self.positions,
                    use_cache=True,
                    **{self.cache_name: self.cache},
                    **seen,
                )
        finally:
            self.cursor.slot = None
        logits: Tensor = output.logits[:, -1]
        return logits


def decode_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one query a row (B, H, 1, D) on keys and values (B, H_kv, W, D): (B, 1, H, D).

    The H / H_kv queries of a key form a block, so that no key is repeated. Raises
    NotImplementedError for anything that would change the scores, such as soft-capping.
    """
    _refuse(others)
    rows, heads, _, width = query.shape
    blocks = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
    output = scaled_dot_product_attention(
        blocks, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.reshape(rows, 1, heads, -1), None


def fused_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    first: Tensor | None = None,
    last: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The same by a kernel that reads only the keys `first` (B,) to `last` (1,), and no mask."""
    from pubswap_client.rollout.decode_kernel import attend

    _refuse(others)
    if first is None or last is None:
        raise NotImplementedError("its decoder does not pass arguments on to its attention layers")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, first, last, scale), None


def _refuse(options: Mapping[str, Any]) -> None:
    unknown = {name for name, option in options.items() if option is not None} - HARMLESS
    if unknown:
        raise NotImplementedError(f"its attention has {', '.join(sorted(unknown))}")
