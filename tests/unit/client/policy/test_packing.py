"""Packs: their rows, the layout of their tokens, and their visibility."""

from collections.abc import Callable
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.packing import pack, plan
from pubswap_protocol.tensors.responses import Response
from support.client.reference import rectangles

CPU = torch.device("cpu")


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.lists(st.integers(1, 40), min_size=20, max_size=20),
    st.integers(1, 200),
    st.sets(st.integers(0, 19)),
)
def test_a_plan_covers_every_row_once_within_the_budget(
    prompts: list[int], lengths: list[int], budget: int, left_out: set[int]
) -> None:
    """Rows stay in order, only a single row may exceed the budget, and no pack has room for the
    next row.
    """
    size = 4
    lengths = lengths[: size * len(prompts)]
    rows = [row for row in range(len(lengths)) if row not in left_out]
    plans = plan(prompts, lengths, rows, budget)

    def cost(members: list[int]) -> int:
        shared = sum(prompts[group] for group in {row // size for row in members})
        return shared + sum(lengths[row] - 1 for row in members)

    assert [row for members in plans for row in members] == rows
    assert all(members for members in plans)
    assert all(cost(members) <= budget or len(members) == 1 for members in plans)
    for members, following in pairwise(plans):
        assert cost([*members, following[0]]) > budget


def small_batch() -> Batch:
    def response(*tokens: int) -> Response:
        array = torch.tensor(tokens, dtype=torch.int32).numpy()
        return Response(array, array.astype("float32") * -0.1)

    return collate(
        [
            Group([5, 6], [response(7, 8, 1), response(1)], [1.0, 0.0]),
            Group([9], [response(10, 1), response(11, 12)], [1.0, 0.0]),
        ],
    )


def test_a_prompt_appears_once_before_its_responses() -> None:
    """A response's last token is scored but is not an input, so a response of one token adds
    none.
    """
    part = pack(small_batch(), [0, 1, 2, 3], CPU)
    assert part.input_ids.tolist() == [[5, 6, 7, 8, 9, 10, 11]]
    assert part.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 1]]
    assert part.tokens.tolist() == [7, 8, 1, 1, 10, 1, 11, 12]
    assert part.predictors.tolist() == [1, 2, 3, 1, 4, 5, 4, 6]
    assert part.indices.tolist() == [0, 1, 2, 3, 6, 7, 9, 10]
    assert part.tree.keys.tolist() == [0, 1, 0, 1, 2, 3, 4, 4, 5, 4, 6]
    queries, keys = part.tree.ends
    assert queries.tolist() == [0, 2, 4, 5, 6, 7]
    assert keys.tolist() == [0, 2, 6, 7, 9, 11]
    assert (max(part.tree.query_counts), max(part.tree.key_counts)) == (2, 4)


def test_a_pack_with_part_of_a_group_contains_its_prompt() -> None:
    """A group that is split over packs has its prompt in each."""
    part = pack(small_batch(), [1, 3], CPU)
    assert part.input_ids.tolist() == [[5, 6, 9, 11]]
    assert part.tokens.tolist() == [1, 11, 12]
    assert part.predictors.tolist() == [1, 2, 3]


def test_a_batch_has_far_fewer_tokens_in_packs_than_as_rectangles(
    make_responses: Callable[..., list[Response]],
) -> None:
    """With ragged lengths there are no padding and no repeated prompts."""
    prompts = ([4] * 30, [5] * 5)
    groups = [
        Group(prompt, make_responses([12, 1, 2, 3], seed), [1.0, 0, 0, 0])
        for seed, prompt in enumerate(prompts)
    ]
    batch = collate(groups)
    part = pack(batch, range(batch.rows), CPU)
    assert part.input_ids.shape[1] == 35 + 2 * (11 + 0 + 1 + 2)
    ids, _ = rectangles(batch)
    assert ids.numel() == 8 * (30 + 12)
