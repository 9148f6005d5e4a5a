"""Tree attention against a softmax over a dense mask, in value and gradient."""

from collections.abc import Sequence

import pytest
import torch

from pubswap_client.policy import attention
from pubswap_client.policy.attention import Span, Tree, tree_attention

SPANS = (
    Span(0, 9),  # a prompt
    Span(9, 20, 0, 9),
    Span(20, 21, 0, 9),
    Span(21, 26, 0, 9),
    Span(26, 27),  # a prompt of one token
    Span(27, 40, 26, 27),
)
HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def visible(spans: Sequence[Span], window: int | None) -> torch.Tensor:
    """Who sees whom (S, S), pair by pair."""
    size = spans[-1].end
    mask = torch.zeros((size, size), dtype=torch.bool)
    for span in spans:
        order = [*range(span.prefix_start, span.prefix_end), *range(span.start, span.end)]
        for place, query in enumerate(order):
            if query < span.start:
                continue
            for other, key in enumerate(order[: place + 1]):
                mask[query, key] = window is None or place - other < window
    return mask


def tensors(device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = SPANS[-1].end
    shapes = [(1, heads, size, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    return [
        torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for shape in shapes
    ]


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None
) -> torch.Tensor:
    """The whole matrix of scores (1, H, S, S), and a softmax over what is visible."""
    repeats = HEADS // KEY_HEADS
    keys, values = (whole.repeat_interleave(repeats, dim=1) for whole in (key, value))
    scores = query @ keys.transpose(-1, -2) * 0.3
    hidden = ~visible(SPANS, window).to(query.device)
    return (scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ values).transpose(1, 2)


def gradients(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    weights = torch.arange(output.numel(), device=output.device).view_as(output).cos()
    return list(torch.autograd.grad((output.float() * weights).sum(), list(inputs)))


@pytest.mark.parametrize("block", [1, 4, 128])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_every_token_sees_its_prompt_and_its_own_past(
    monkeypatch: pytest.MonkeyPatch, block: int, window: int | None
) -> None:
    """And nothing else, however many queries are taken at a time, and at most a window back."""
    monkeypatch.setattr(attention, "BLOCK", block)
    inputs = tensors()
    tree = Tree(SPANS, torch.device("cpu"))
    output, _ = tree_attention(
        torch.nn.Identity(), *inputs, None, scaling=0.3, sliding_window=window, tree=tree
    )
    expected = dense(*inputs, window)
    assert output.shape == (1, SPANS[-1].end, HEADS, WIDTH)
    assert torch.allclose(output, expected, atol=1e-5)
    for ours, theirs in zip(gradients(output, inputs), gradients(expected, inputs), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [None, 3])
def test_the_flash_path_computes_the_same(window: int | None) -> None:
    """On a GPU in bfloat16, in value and gradient, to its rounding."""
    inputs = tensors("cuda", torch.bfloat16)
    tree = Tree(SPANS, inputs[0].device)
    output, _ = tree_attention(
        torch.nn.Identity(),
        *inputs,
        None,
        scaling=0.3,
        sliding_window=window,
        tree=tree,
        portable=False,
    )
    precise = [tensor.detach().float().requires_grad_() for tensor in inputs]
    expected = dense(*precise, window)
    assert torch.allclose(output.float(), expected, atol=0.03)
    for ours, theirs in zip(gradients(output, inputs), gradients(expected, precise), strict=True):
        assert torch.allclose(ours.float(), theirs, atol=0.1)
