"""The padded fallback's rows, compared with the pack from which they are made."""

from itertools import pairwise

import torch

from pubswap_client.policy.packing import Pack
from pubswap_client.policy.padded import padded_hidden, plan_padded
from pubswap_client.policy.tree import Span, Tree


class Positions(torch.nn.Module):
    """A decoder whose hidden state is the token and the sum of all tokens up to it."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool
    ) -> tuple[torch.Tensor]:
        assert not use_cache
        self.shape, self.mask = input_ids.shape, attention_mask
        return (torch.stack([input_ids, (input_ids * attention_mask).cumsum(dim=1)], dim=-1),)


def test_each_row_is_a_prompt_and_one_response() -> None:
    """A prompt whose responses have one token is a row by itself; padding is on the right."""
    # Prompt 10 20 has responses 1 2 [x] and 3 [x]; those of prompt 40 50 60 have one token.
    ids = torch.tensor([[10, 20, 1, 2, 3, 40, 50, 60]])
    spans = (Span(0, 2), Span(2, 4, 0, 2), Span(4, 5, 0, 2), Span(5, 8))
    nothing = torch.zeros(0, dtype=torch.int64)
    predictors = torch.tensor([1, 2, 3, 1, 4, 7, 7])
    tree = Tree(spans, torch.device("cpu"))
    decoder = Positions()
    hidden = padded_hidden(decoder, Pack(ids, ids, tree, predictors, nothing, nothing))
    assert decoder.shape == (3, 4)
    assert decoder.mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0]]
    assert hidden[:, 0].tolist() == [20, 1, 2, 20, 3, 60, 60]
    assert hidden[:, 1].tolist() == [30, 31, 33, 30, 33, 150, 150]


def test_a_plan_counts_padding_and_each_row_s_prompt() -> None:
    """Rows times the longest row is at most the budget, unless it is a single row."""
    prompts, lengths = (3, 10), (1, 5, 2, 8)
    rows = [prompts[row // 2] + length - 1 for row, length in enumerate(lengths)]
    for budget in range(1, 80):
        packs = plan_padded(prompts, lengths, range(4), budget)
        assert [row for pack in packs for row in pack] == [0, 1, 2, 3]
        for pack in packs:
            assert len(pack) == 1 or len(pack) * max(rows[row] for row in pack) <= budget
        for pack, after in pairwise(packs):
            more = [*pack, after[0]]
            assert len(more) * max(rows[row] for row in more) > budget
    assert plan_padded(prompts, lengths, [], 10) == []
