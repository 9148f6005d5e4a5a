"""Tree attention against a softmax with a dense mask, in value and gradient."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from pubswap_client.policy import attention_kernels as kernels
from pubswap_client.policy.attention import tree_attention
from pubswap_client.policy.attention_kernels import (
    KERNELS,
    activated,
    batched,
    block_mask,
    flash,
    flex,
    packed_kernels,
)
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.tree import Span, Tree

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
    """The mask (S, S) of which query sees which key, computed pair by pair."""
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
    """Attention from the whole score matrix (1, H, S, S), with a softmax over the visible keys."""
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
    """And nothing else, for any block size, and no further back than the window."""
    monkeypatch.setattr(kernels, "BLOCK", block)
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


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("tokens", [16, 1 << 16])
def test_batches_of_like_spans_give_the_same(
    monkeypatch: pytest.MonkeyPatch, window: int | None, tokens: int
) -> None:
    """In value and gradient, whether spans of a shape share a call or not; nothing is NaN."""
    monkeypatch.setattr(kernels, "BATCH_TOKENS", tokens)
    inputs = tensors()
    tree = Tree(SPANS, torch.device("cpu"))
    output = batched(*inputs, tree, 0.3, window)
    expected = dense(*inputs, window)
    assert torch.allclose(output[0], expected[0], atol=1e-5)
    for ours, theirs in zip(gradients(output, inputs), gradients(expected, inputs), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_the_blocks_of_flex_attention_hold_all_that_is_seen(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """Its mask equals the tree's pair by pair, and no visible pair is in a skipped block."""
    monkeypatch.setattr(kernels, "FLEX_BLOCK", 8)
    mask = block_mask(Tree(SPANS, torch.device("cpu")), window)
    size = SPANS[-1].end
    places = torch.arange(mask.shape[-1])
    seen = mask.mask_mod(places[:1], places[:1], places[:, None], places[None, :])
    expected = visible(SPANS, window)
    assert torch.equal(seen[:size, :size], expected)
    assert seen.any(dim=1).all()  # a softmax over nothing is NaN
    kept = mask.to_dense()[0, 0].bool().repeat_interleave(8, 0).repeat_interleave(8, 1)
    assert not (seen & ~kept).any()
    assert not kept.all()  # some blocks are skipped


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by the compiler itself
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_computes_the_same(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, window: int | None
) -> None:
    """Compiled as on a GPU, or eager; only forward, because on a CPU torch has no gradient for
    it.
    """
    if not compiled:
        monkeypatch.setattr(kernels, "compiled_flex", lambda: flex_attention)
    inputs = [tensor.detach() for tensor in tensors()]
    tree = Tree(SPANS, torch.device("cpu"))
    with torch.no_grad():
        output = flex(*inputs, tree, 0.3, window)
    assert torch.allclose(output, dense(*inputs, window), atol=1e-5)


def sequences(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    scale: float,
    back: int,
) -> torch.Tensor:
    """Causal attention of each sequence's last tokens (S, H, D), `back` tokens back or -1 for
    all.
    """
    assert query.shape[1] == key.shape[1], "the heads differ"
    parts = []
    for start, end, first, last in zip(
        query_ends, query_ends[1:], key_ends, key_ends[1:], strict=False
    ):
        scores = torch.einsum("qhd,khd->hqk", query[start:end], key[first:last]) * scale
        count = int(last - first)
        own = torch.arange(count)[-int(end - start) :, None]
        far = own - torch.arange(count)
        scores = scores.masked_fill((far < 0) | ((back >= 0) & (far > back)), -torch.inf)
        parts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[first:last]))
    return torch.cat(parts)


def newest(q, k, v, a, b, c, d, *, scale=None, window_size=(-1, -1), enable_gqa=False):  # type: ignore[no-untyped-def]
    groups = q.shape[1] // k.shape[1] if enable_gqa else 1
    assert window_size[1] == 0
    keys, values = (each.repeat_interleave(groups, 1) for each in (k, v))
    return sequences(q, keys, values, a, b, scale, window_size[0])


def shared(q, k, v):  # type: ignore[no-untyped-def]
    return (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))


def middle(q, k, v, a, b, c, d, *, scale=None, window_size=(-1, -1)):  # type: ignore[no-untyped-def]
    return sequences(q, *shared(q, k, v), a, b, scale, window_size[0])


def oldest(q, k, v, a, b, c, d, is_causal=False, return_aux=None):  # type: ignore[no-untyped-def]
    assert is_causal
    return sequences(q, *shared(q, k, v), a, b, q.shape[-1] ** -0.5, -1)


@pytest.mark.parametrize("call", [newest, middle, oldest])
def test_flash_attention_is_called_with_each_torch_version_s_signature(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., torch.Tensor]
) -> None:
    """Without a `scale` argument the queries are scaled instead; keys keep their shared heads."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", call)
    inputs = tensors()
    tree = Tree(SPANS, torch.device("cpu"))
    for window in (None, 3):
        if window and call is oldest:
            with pytest.raises(NotImplementedError, match="no sliding window"):
                flash(*inputs, tree, 0.3, window)
            continue
        output = flash(*inputs, tree, 0.3, window)
        expected = dense(*inputs, window)
        assert torch.allclose(output, expected, atol=1e-5)
        for mine, theirs in zip(
            gradients(output, inputs), gradients(expected, inputs), strict=True
        ):
            assert torch.allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize(
    "asked",
    [
        {"softcap": 50.0},
        {"s_aux": torch.zeros(4)},
        {"position_bias": torch.zeros(1)},
        {"is_causal": False},
        {"dropout": 0.1},
        {"anything": 0},
    ],
    ids=str,
)
def test_arguments_that_the_tree_does_not_support_are_refused(asked: dict[str, Any]) -> None:
    """Unknown arguments are refused by name, not ignored, unless they are None or change
    nothing.
    """
    inputs = tensors()
    tree = Tree(SPANS, torch.device("cpu"))
    layer = torch.nn.Identity()
    known = {"softcap": None, "position_ids": torch.zeros(1), "use_cache": False, "scaling": 0.3}
    tree_attention(layer, *inputs, None, tree=tree, **known)
    with pytest.raises(NotImplementedError, match=next(iter(asked))):
        tree_attention(layer, *inputs, None, tree=tree, **(known | asked))
    with pytest.raises(NotImplementedError, match="attention_mask"):
        tree_attention(layer, *inputs, torch.ones(1), tree=tree)
    with pytest.raises(NotImplementedError, match="does not pass the tree on"):
        tree_attention(layer, *inputs, None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["flash3", "flash", "flex", "portable"])
@pytest.mark.parametrize("window", [None, 3])
def test_every_kernel_computes_the_same_on_a_gpu(name: str, window: int | None) -> None:
    """In bfloat16, value and gradient agree up to its rounding."""
    inputs = tensors("cuda", torch.bfloat16)
    if name not in packed_kernels(inputs[0].device, torch.bfloat16):
        pytest.skip("FlashAttention-3 is not installed, or the GPU is not a Hopper")
    tree = Tree(SPANS, inputs[0].device)
    precise = [tensor.detach().float().requires_grad_() for tensor in inputs]
    expected = dense(*precise, window)
    with activated(name):
        output = KERNELS[name](*inputs, tree, 0.3, window)
        found = gradients(output, inputs)
    assert torch.allclose(output.float(), expected, atol=0.03)
    for ours, theirs in zip(found, gradients(expected, precise), strict=True):
        assert torch.allclose(ours.float(), theirs, atol=0.1)


def test_flash_attention_3_is_active_in_its_own_passes_alone(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch is switched to it for the packs only, and not for another kernel."""
    told: list[str | None] = []
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", told.append)
    monkeypatch.setattr(
        torch.nn.attention, "restore_flash_attention_impl", lambda: told.append(None)
    )
    for policy.path, expected in (("flash3", ["FA3"]), ("flash", [])):
        told.clear()
        with policy.packed():
            assert told == expected
        assert told == expected + [None] * len(expected)


def test_flash_attention_3_is_tried_first_where_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is on a Hopper GPU with its package; elsewhere it is not tried."""
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert packed_kernels(device, torch.bfloat16)[0] == "flash"
    monkeypatch.setattr(kernels, "find_spec", lambda _: True)
    assert packed_kernels(device, torch.bfloat16)[:2] == ("flash3", "flash")
    assert packed_kernels(device, torch.float32) == ("portable",)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert packed_kernels(device, torch.bfloat16)[0] == "flash"
