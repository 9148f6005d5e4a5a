"""Packs: micro-batches within a token budget, without padding, with each prompt only once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from pubswap_client.policy.groups import Batch
from pubswap_client.policy.tree import Span, Tree, sent


@dataclass(frozen=True, slots=True)
class Pack:
    """Some rows of a batch as one sequence of S tokens that holds n response tokens to score.

    A response's last token is scored but never an input: nothing follows it.
    """

    input_ids: Tensor  # (1, S)
    position_ids: Tensor  # (1, S), as if each response followed its prompt alone
    tree: Tree
    predictors: Tensor  # (n,), the position in 0..S-1 that predicts each response token
    indices: Tensor  # (n,), of the tokens in the batch's flattened (B, T)
    tokens: Tensor  # (n,)


def plan(
    prompts: Sequence[int], lengths: Sequence[int], rows: Sequence[int], budget: int
) -> list[list[int]]:
    """Rows of each pack, in order: at most `budget` tokens, but at least one row.

    `prompts` (G,) and `lengths` (B,) count tokens; row i belongs to group i // (B / G), whose
    prompt is counted once in every pack that holds one of its rows.
    """
    size = len(lengths) // len(prompts)
    packs: list[list[int]] = []
    used = 0
    for row in rows:
        group = row // size
        shared = bool(packs) and packs[-1][-1] // size == group
        cost = lengths[row] - 1 + (0 if shared else prompts[group])
        if not packs or used + cost > budget:
            packs.append([])
            used, cost = 0, lengths[row] - 1 + prompts[group]
        packs[-1].append(row)
        used += cost
    return packs


def pack(batch: Batch, rows: Sequence[int], device: torch.device) -> Pack:
    """The rows, given in order, as one pack. Without rows, the pack has nothing to score."""
    if not rows:
        # One token and nothing to score, for a process that must take part but has no rows left.
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        first = batch.prompts[0][None, :1].to(device)
        tree = Tree((Span(0, 1),), device)
        return Pack(first, torch.zeros_like(first), tree, nothing, nothing, nothing)
    spans: list[Span] = []
    inputs, positions, predictors, indices, tokens = [], [], [], [], []
    end = 0
    for group, members in groupby(rows, key=lambda row: row // batch.group_size):
        prompt = batch.prompts[group]
        prefix = Span(end, end + len(prompt))
        spans.append(prefix)
        inputs.append(prompt)
        positions.append(torch.arange(len(prompt)))
        end = prefix.end
        for row in members:
            response = batch.responses[row]
            length = len(response)
            tokens.append(response)
            indices.append(torch.arange(length) + row * batch.width)
            # The prompt's last position predicts the first token, each token the next one.
            predictors += [torch.tensor([prefix.end - 1]), torch.arange(end, end + length - 1)]
            if length > 1:
                spans.append(Span(end, end + length - 1, prefix.start, prefix.end))
                inputs.append(response[:-1])
                positions.append(len(prompt) + torch.arange(length - 1))
            end += length - 1

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return sent(torch.cat(list(parts)), device)

    return Pack(
        input_ids=joined(inputs)[None],
        position_ids=joined(positions)[None],
        tree=Tree(tuple(spans), device),
        predictors=joined(predictors),
        indices=joined(indices),
        tokens=joined(tokens),
    )
