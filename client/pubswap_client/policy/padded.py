"""The padded fallback: a pack's rows as a rectangle, through the decoder as transformers runs it.

For models whose attention the packed path does not support. Each prompt is recomputed for each of
its responses, and padding is computed too, so it costs several times as much.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pubswap_client.policy.packing import Pack
from pubswap_client.policy.tree import sent

PADDED = "padded"


def plan_padded(
    prompts: Sequence[int], lengths: Sequence[int], rows: Sequence[int], budget: int
) -> list[list[int]]:
    """Rows of each pack, as in `packing.plan`, but counting each row's prompt and padding."""
    size = len(lengths) // len(prompts)
    packs: list[list[int]] = []
    longest = 0
    for row in rows:
        tokens = prompts[row // size] + lengths[row] - 1
        longest = max(longest, tokens)
        if not packs or (len(packs[-1]) + 1) * longest > budget:
            packs.append([])
            longest = tokens
        packs[-1].append(row)
    return packs


def padded_hidden(decoder: Any, pack: Pack) -> Tensor:
    """The hidden states (n, H) that predict a pack's response tokens.

    Rows are padded on the right, where a causal model does not see the padding. So no positions are
    passed, and layers that carry a state start at the first token.
    """
    rows, columns, sources = _rectangle(pack)
    input_ids = pack.input_ids[0][sources.clamp(min=0)]
    mask = (sources >= 0).to(torch.int64)
    output = decoder(input_ids=input_ids, attention_mask=mask, use_cache=False)
    hidden: Tensor = output[0][rows[pack.predictors], columns[pack.predictors]]
    return hidden


def _rectangle(pack: Pack) -> tuple[Tensor, Tensor, Tensor]:
    """Row (S,) and column (S,) of each of S positions, and the position in each cell (R, W), or -1.

    A row is a prompt and one response, or a prompt alone if its responses have one token. A prompt
    in several rows is looked up in the first.
    """
    spans = pack.tree.spans
    leading = {span.prefix_start for span in spans if span.prefix_end > span.prefix_start}
    leaves = [s for s in spans if s.prefix_end > s.prefix_start or s.start not in leading]
    width = max(span.end - span.start + span.prefix_end - span.prefix_start for span in leaves)
    sources = torch.full((len(leaves), width), -1)
    rows, columns = (torch.zeros(spans[-1].end, dtype=torch.int64) for _ in range(2))
    for row, span in reversed(list(enumerate(leaves))):
        positions = torch.cat(
            [torch.arange(span.prefix_start, span.prefix_end), torch.arange(span.start, span.end)]
        )
        sources[row, : len(positions)] = positions
        rows[positions], columns[positions] = row, torch.arange(len(positions))
    device = pack.input_ids.device
    return sent(rows, device), sent(columns, device), sent(sources, device)
