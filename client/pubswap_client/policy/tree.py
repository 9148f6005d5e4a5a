"""Visibility between a pack's tokens: prompts, and responses after their prompts."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start..end of a pack that also see the tokens prefix_start..prefix_end."""

    start: int
    end: int
    prefix_start: int = 0
    prefix_end: int = 0


@dataclass(frozen=True)
class Tree:
    """The spans of a pack, in order and without gaps: prompts, and responses with prefixes."""

    spans: Sequence[Span]
    device: torch.device
    _cache: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    def cached(self, name: Hashable, make: Callable[[], Value]) -> Value:
        """A kernel's value for the tree, computed once for all layers."""
        if name not in self._cache:
            self._cache[name] = make()
        value: Value = self._cache[name]
        return value

    @cached_property
    def keys(self) -> Tensor:
        """Each span's keys one after another, prefix first: positions in the pack."""
        ranges = [
            torch.arange(start, end)
            for span in self.spans
            for start, end in ((span.prefix_start, span.prefix_end), (span.start, span.end))
        ]
        return sent(torch.cat(ranges), self.device)

    @cached_property
    def own(self) -> Tensor:
        """For each token (S,), the index in `keys` at which its own span sees it."""
        ends = accumulate(self.key_counts)
        ranges = [
            torch.arange(end - span.end + span.start, end)
            for span, end in zip(self.spans, ends, strict=True)
        ]
        return sent(torch.cat(ranges), self.device)

    @cached_property
    def copies(self) -> list[tuple[Tensor, Tensor]]:
        """For each c, the prompt tokens (n,) that c responses see, and their indices in `keys`
        (n, c) at which these see them.

        There are few different c: a whole group's, and those of groups that the pack cuts.
        """
        starts = accumulate(self.key_counts, initial=0)
        by_prefix: dict[tuple[int, int], list[int]] = {}
        for span, start in zip(self.spans, starts, strict=False):
            if span.prefix_end > span.prefix_start:
                by_prefix.setdefault((span.prefix_start, span.prefix_end), []).append(start)
        by_count: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for (first, end), starts_of_copies in by_prefix.items():
            tokens = torch.arange(first, end)
            places = (tokens - first)[:, None] + torch.tensor(starts_of_copies)
            by_count.setdefault(len(starts_of_copies), []).append((tokens, places))
        return [
            (
                sent(torch.cat([tokens for tokens, _ in prefixes]), self.device),
                sent(torch.cat([places for _, places in prefixes]), self.device),
            )
            for prefixes in by_count.values()
        ]

    @cached_property
    def query_counts(self) -> list[int]:
        return [span.end - span.start for span in self.spans]

    @cached_property
    def key_counts(self) -> list[int]:
        """Keys of each span, including its prefix's."""
        return [s.end - s.start + s.prefix_end - s.prefix_start for s in self.spans]

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Cumulative numbers of queries and of keys, each (spans + 1,), int32."""
        queries, keys = (
            sent(torch.tensor([0, *accumulate(counts)], dtype=torch.int32), self.device)
            for counts in (self.query_counts, self.key_counts)
        )
        return queries, keys


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to the device; a GPU does so without waiting for earlier packs."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
