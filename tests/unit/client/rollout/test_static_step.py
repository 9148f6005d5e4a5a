"""Decoding with static shapes, as CUDA graphs require; on a CPU, the same code without a graph."""

import gc
import logging
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout import static_step
from pubswap_client.rollout.kv_cache import PreallocatedLayer
from pubswap_client.rollout.static_step import StaticStep, decode_attention, fused_attention
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response
from support.client.architectures import random_policy

PROMPTS = ([4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17])


def engine_of(policy: Policy, static: bool, fused: bool = False) -> TransformersEngine:
    """An engine with the settings of a GPU (static) or of a CPU."""
    engine = TransformersEngine(policy)
    engine.static, engine.fused = static, fused
    engine.check_every = 8 if static else 1
    return engine


def generate(engine: TransformersEngine, max_tokens: int = 60) -> list[list[Response]]:
    return engine.generate(PROMPTS, SamplingParameters(4, max_tokens, 0.7, 11))


def close(left: list[list[Response]], right: list[list[Response]]) -> bool:
    pairs = [(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)]
    return all(
        np.array_equal(a.tokens, b.tokens) and np.allclose(a.logprobs, b.logprobs, atol=1e-4)
        for a, b in pairs
    )


@contextmanager
def recorded_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Rows and window of each static step created."""
    made: list[tuple[int, int]] = []
    make = StaticStep.__init__

    def noting(self: StaticStep, **arguments: Any) -> None:
        make(self, **arguments)
        made.append((len(self.tokens), self.window))

    monkeypatch.setattr(StaticStep, "__init__", noting)
    yield made


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A fake of torch's sync debug mode; the last entry of the list is the current mode."""
    modes = ["default"]

    def change(mode: str) -> None:
        if modes == ["default"]:  # torch warns once
            warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)
        modes.append(mode)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", change)
    return modes


class Operations(TorchDispatchMode):
    """Counts operations by name, and the largest output of each."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Counter[str]()
        self.longest = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.count[name] += 1
        if isinstance(result, torch.Tensor):
            self.longest[name] = max(self.longest[name], result.numel())
        return result


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_static_shapes_give_the_same_responses(
    make_policy: Callable[..., Policy], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several windows, and while finished rows leave the batch."""
    policy = make_policy(kind)
    wanted = generate(engine_of(policy, static=False))
    monkeypatch.setattr(static_step, "WINDOW", 16)
    engine = engine_of(policy, static=True)
    with recorded_steps(monkeypatch) as made:
        found = generate(engine)
    assert engine.static
    assert close(wanted, found)
    assert len({window for _, window in made}) > 2
    assert len({rows for rows, _ in made}) > 1


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the kernel, which needs Triton; the real one is in tests/engines."""

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        first: torch.Tensor,
        last: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        columns = torch.arange(key.shape[2])
        seen = ((columns >= first[:, None]) & (columns <= last))[:, None, :, None]
        # What is not seen was never written, and may be anything.
        key, value = (whole.where(seen, 0.0) for whole in (key, value))
        mask = seen.transpose(2, 3)
        output = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=True
        )
        return output.transpose(1, 2)

    module = ModuleType("pubswap_client.rollout.decode_kernel")
    module.attend = attend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_the_fused_kernel_gives_the_same_responses(
    make_policy: Callable[..., Policy],
    kind: str,
    kernel: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has one window, so a step is made only when rows leave the batch."""
    policy = make_policy(kind)
    wanted = generate(engine_of(policy, static=False))
    engine = engine_of(policy, static=True, fused=True)
    engine.keep = 0.75
    with recorded_steps(monkeypatch) as made:
        assert close(wanted, generate(engine))
    assert engine.static
    assert engine.fused
    assert len({window for _, window in made}) == 1
    rows = [rows for rows, _ in made[1:]]  # the first is the comparison's
    assert len(rows) > 2
    assert all(after <= 0.75 * before for before, after in pairwise(rows))


def test_without_triton_the_masked_kernel_is_used(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why, once."""
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "pubswap_client.rollout.decode_kernel", raising=False)
    wanted = generate(engine_of(policy, static=False))
    engine = engine_of(policy, static=True, fused=True)
    for _ in range(2):
        assert close(wanted, generate(engine))
    assert engine.static
    assert not engine.fused
    assert len(caplog.records) == 1
    assert "Sampling without the fused attention kernel: import of triton" in caplog.text


def test_a_fused_kernel_that_is_wrong_is_not_used(
    policy: Policy,
    kernel: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here it leaves out each row's last key."""
    right = kernel.attend
    monkeypatch.setattr(kernel, "attend", lambda q, k, v, a, b, s: right(q, k, v, a, b - 1, s))
    wanted = generate(engine_of(policy, static=False))
    engine = engine_of(policy, static=True, fused=True)
    assert close(wanted, generate(engine))
    assert engine.static
    assert not engine.fused
    assert "kernel: probabilities differ by" in caplog.text


def test_a_model_of_experts_has_static_shapes() -> None:
    """Such a model passes each attention layer an option about the router's logits."""
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    settings = RunSettings.model_validate({"lora": {"rank": 2, "target_modules": attention}})
    policy = random_policy("Qwen3-MoE", settings=settings)
    wanted = generate(engine_of(policy, static=False))
    engine = engine_of(policy, static=True)
    assert close(wanted, generate(engine))
    assert engine.static


def test_uninitialized_memory_does_not_matter(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A masked NaN would make its whole row NaN."""
    wanted = generate(engine_of(policy, static=False))
    new_empty = torch.Tensor.new_empty

    def poisoned(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        return new_empty(self, *arguments, **options).fill_(torch.nan)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    engine = engine_of(policy, static=True)
    assert close(wanted, generate(engine))
    assert engine.static


def test_a_graph_that_cannot_be_recorded_is_logged_once_and_not_used(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As here, where torch has no CUDA."""
    wanted = generate(engine_of(policy, static=False))
    monkeypatch.setattr(static_step, "WINDOW", 16)
    engine = engine_of(policy, static=True)
    engine.graphs = True
    with caplog.at_level(logging.WARNING):
        assert close(wanted, generate(engine))
    assert engine.static
    assert not engine.graphs
    assert len(caplog.records) == 1
    assert "CUDA graphs cannot be used" in caplog.text


def test_a_step_that_waits_for_the_device_is_never_recorded(
    policy: Policy, waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed recording would leave torch's allocator unable to free memory."""

    def wait(*_: object) -> None:
        if waiting[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    wanted = generate(engine_of(policy, static=False))
    policy.decoder.norm.register_forward_pre_hook(wait)
    monkeypatch.setattr(StaticStep, "record", lambda _: pytest.fail("recorded"))
    engine = engine_of(policy, static=True)
    engine.graphs = True
    assert close(wanted, generate(engine))
    assert engine.static
    assert not engine.graphs
    assert waiting[-1] == "default"


def test_a_recorded_step_is_replayed_at_the_right_places(
    policy: Policy, waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the contents of tensors may change between steps: this fake graph computes what was
    recorded, whatever happened to the host's objects.
    """
    wanted = generate(engine_of(policy, static=False))
    monkeypatch.setattr(static_step, "WINDOW", 16)
    replayed: list[int] = []

    def record(self: StaticStep) -> None:
        run, slot, window, cursor = self._forward, self.slot, self.window, self.cursor

        def replay() -> torch.Tensor:
            length, cursor.length = cursor.length, -1  # so that using the host's value fails
            cursor.slot, cursor.window = slot, window
            try:
                return run()
            finally:
                cursor.length = length
                replayed.append(1)

        self._replay = replay

    monkeypatch.setattr(StaticStep, "record", record)
    engine = engine_of(policy, static=True)
    engine.graphs = True
    assert close(wanted, generate(engine))
    assert len(replayed) > 30


@pytest.mark.parametrize("graphs", [False, True])
def test_the_cache_is_freed_with_the_responses(
    policy: Policy, graphs: bool, waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for Python's garbage collector: on a GPU, the update needs that memory at
    once.
    """
    made: list[weakref.ref[Any]] = []
    make = PreallocatedLayer.__init__

    def noting(self: PreallocatedLayer, *arguments: Any) -> None:
        make(self, *arguments)
        made.append(weakref.ref(self))

    def record(self: StaticStep) -> None:
        self._replay = partial(StaticStep._forward, weakref.proxy(self))  # a graph holds no host

    monkeypatch.setattr(PreallocatedLayer, "__init__", noting)
    monkeypatch.setattr(StaticStep, "record", record)
    engine = engine_of(policy, static=True)
    engine.graphs = graphs
    gc.disable()
    try:
        generate(engine)  # includes the comparison of both paths
        kept = [layer() is not None for layer in made]
    finally:
        gc.enable()
    assert made
    assert not any(kept)
    assert engine.static


def test_static_shapes_that_change_the_model_are_not_used(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the static path attends to padding and future tokens."""
    wanted = generate(engine_of(policy, static=False))
    make = StaticStep.__init__

    def blind(self: StaticStep, **arguments: Any) -> None:
        make(self, **arguments)
        self._filled = torch.ones_like(self._filled)
        self._columns = torch.zeros_like(self._columns)

    monkeypatch.setattr(StaticStep, "__init__", blind)
    engine = engine_of(policy, static=True)
    assert close(wanted, generate(engine))
    assert not engine.static
    assert "probabilities differ by" in caplog.text


def test_a_model_with_sliding_windows_does_not_use_static_shapes(
    make_policy: Callable[..., Policy],
) -> None:
    """Its layers have their own way of caching keys and values."""
    policy = make_policy("mistral", sliding_window=6)
    wanted = generate(engine_of(policy, static=False))
    engine = engine_of(policy, static=True)
    assert close(wanted, generate(engine))
    assert not engine.static


def test_static_shapes_are_not_used_with_unknown_attention(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    """A layer that needs more than plain scores, such as soft-capping, samples with its own
    attention.
    """
    wanted = generate(engine_of(policy, static=False))
    for module in policy.model.modules():
        if hasattr(module, "q_proj"):
            module.register_forward_pre_hook(
                lambda _module, args, options: (args, options | {"cap_of_a_new_kind": 50.0}),
                with_kwargs=True,
            )
    engine = engine_of(policy, static=True)
    assert close(wanted, generate(engine))
    assert not engine.static
    assert "cap_of_a_new_kind" in caplog.text


def test_one_query_in_blocks_of_heads_is_plain_attention() -> None:
    """Compared with float64, with grouped heads and masked keys."""
    torch.manual_seed(0)
    query, key, value = (
        torch.randn((3, heads, length, 8)) for heads, length in ((6, 1), (2, 10), (2, 10))
    )
    mask = torch.rand((3, 1, 1, 10)) > 0.5
    mask[..., 0] = True
    found, _ = decode_attention(torch.nn.Module(), query, key, value, mask, scaling=0.3)
    repeated = (whole.double().repeat_interleave(3, dim=1) for whole in (key, value))
    keys, values = repeated
    scores = (query.double() @ keys.transpose(2, 3) * 0.3).masked_fill(~mask, -torch.inf)
    exact = (scores.softmax(dim=-1) @ values).transpose(1, 2)
    assert found.shape == (3, 1, 6, 8)
    assert torch.allclose(found.double(), exact, atol=1e-6)


@pytest.mark.parametrize("scaling", [None, 0.3])
def test_the_fused_kernel_gets_the_layers_scale(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch, scaling: float | None
) -> None:
    """Or 1 / sqrt(D), as attention has it by default."""
    scales: list[float] = []
    monkeypatch.setattr(kernel, "attend", lambda *inputs: scales.append(inputs[-1]))
    query, key = torch.zeros((1, 2, 1, 16)), torch.zeros((1, 2, 4, 16))
    keys = {"first": torch.tensor([0]), "last": torch.tensor([3])}
    fused_attention(torch.nn.Module(), query, key, key, None, scaling, **keys)
    assert scales == [scaling or 0.25]


@pytest.mark.parametrize("missing", ["first", "last"])
def test_the_fused_kernel_does_not_guess_which_keys_are_seen(
    kernel: ModuleType, missing: str
) -> None:
    """A decoder may not pass arguments on to its attention layers."""
    query, key = torch.zeros((1, 2, 1, 16)), torch.zeros((1, 2, 4, 16))
    keys = {"first": torch.tensor([0]), "last": torch.tensor([3]), missing: None}
    with pytest.raises(NotImplementedError, match="does not pass arguments on"):
        fused_attention(torch.nn.Module(), query, key, key, None, **keys)


def test_nothing_waits_for_the_device_at_each_token(policy: Policy) -> None:
    """The host learns which rows have ended only once in several tokens."""
    engine = engine_of(policy, static=True)
    policy.card = policy.card.model_copy(update={"eos_token_ids": (10**6,)})  # no row ends
    generate(engine)  # includes the comparison of both paths
    counts = []
    for tokens in (20, 60):
        with Operations() as operations:
            generate(engine, max_tokens=tokens)
        counts.append(operations.count)
    waits = [counts[1][name] - counts[0][name] for name in ("_local_scalar_dense", "nonzero")]
    assert waits == [60 // 8 - 20 // 8, 0]


@pytest.mark.parametrize("static", [False, True])
def test_no_token_copies_the_keys_of_those_before_it(policy: Policy, static: bool) -> None:
    """The size of a step's concatenations does not grow with the number of steps."""
    policy.card = policy.card.model_copy(update={"eos_token_ids": (10**6,)})
    engine = engine_of(policy, static)
    longest = []
    for tokens in (10, 60):
        with Operations() as operations:
            generate(engine, max_tokens=tokens)
        longest.append((operations.longest["cat"], operations.longest["copy_"] if static else 0))
    assert longest[0] == longest[1]
