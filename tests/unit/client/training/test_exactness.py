"""Every fast path of the update equals the plain reference in loss and gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.policy import Policy
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.tensors.responses import Response
from support.client.reference import reference_update

# With and without query norms, biases, tied embeddings and shared key heads.
MODELS = ["tiny_mild_qwen3", "tiny_mild_llama", "tiny_untied_qwen2", "tiny_sliding_mistral"]
RATE = 0.05
Epochs = list[tuple[float, list[torch.Tensor]]]


def random_batch(make_responses: Callable[..., list[Response]], seed: int) -> Batch:
    """Four groups of four: lengths 1 to 12 (12 is truncated), donors, and one group of equal
    rewards.
    """
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(4):
        prompt = rng.integers(3, 40, int(rng.integers(1, 20))).tolist()
        lengths = [int(n) for n in rng.integers(1, 13, 4)]
        if number == 0:
            lengths[:2] = [1, 12]
        responses = make_responses(lengths, seed + number, donated=[3] if number % 2 else [])
        rewards = [1.0] * 4 if number == 2 else [1.0, 0.0, 0.0, float(rng.integers(0, 2))]
        groups.append(Group(prompt, responses, rewards))
    return collate(groups)


def changed(settings: RunSettings, method: Any = "pubswap", **grpo: Any) -> RunSettings:
    values = settings.model_dump() | {"method": method}
    values["grpo"] |= grpo
    return RunSettings.model_validate(values)


def recording(policy: Policy, gradients: list[list[torch.Tensor]]) -> torch.optim.Optimizer:
    """Plain gradient descent that records the gradients it gets (after clipping)."""
    optimizer = torch.optim.SGD(policy.trainable(), lr=RATE)
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append([f.grad.clone() for f in policy.trainable()])  # type: ignore[union-attr]
    )
    return optimizer


def both(
    policy: Policy, batch: Batch, settings: RunSettings, **how: Any
) -> tuple[Epochs, StepMetrics, list[list[torch.Tensor]], Adapter, Adapter]:
    """The reference's epochs, ours, and both resulting adapters."""
    start = policy.adapter()
    round_start = [torch.full_like(factor, 0.1) for factor in policy.trainable()]
    plain = torch.optim.SGD(policy.trainable(), lr=RATE)
    expected = reference_update(policy, plain, batch, settings, round_start)
    reached = policy.adapter()
    policy.load_adapter(start)
    gradients: list[list[torch.Tensor]] = []
    policy.settings = settings
    context = UpdateContext(policy, **{"budget": TokenBudget(1 << 20)} | how)
    metrics = update(context, recording(policy, gradients), batch, round_start)
    return expected, metrics, gradients, reached, policy.adapter()


@pytest.fixture
def load(
    request: pytest.FixtureRequest,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    random_adapter: Callable[..., Adapter],
) -> Callable[[str], Policy]:
    """A function that loads one of MODELS with an adapter that changes its outputs."""

    def loading(name: str) -> Policy:
        folder = request.getfixturevalue(name)
        loaded = Policy.load(folder, card_of(folder), run_settings, device="cpu")
        loaded.load_adapter(random_adapter(loaded.card.layout, seed=1))
        return loaded

    return loading


SETTINGS: list[dict[str, Any]] = [
    {},
    {"kl_beta": 0.1, "loss_aggregation": "token_mean"},
    {"kl_beta": 0.1, "method": {"donor_ratio": "decoupled"}},
    {"kl_beta": 0.0, "method": {"donor_ratio": "decoupled"}, "entropy_coefficient": 0.3},
    {"kl_beta": 0.0},
    {"kl_beta": 0.1, "method": "fedprox", "rollout_correction": "none"},
]


PACKS = [(1 << 20, False), (40, True), (1, False)]
# Settings change what is computed from the model's outputs, packs how the model computes them:
# try all pairs of both, and every model with every kind of pack.
CASES = [
    (MODELS[(first + second) % len(MODELS)], changes, *packs)
    for first, changes in enumerate(SETTINGS)
    for second, packs in enumerate(PACKS)
]


@pytest.mark.parametrize(("model", "changes", "budget", "checkpointing"), CASES, ids=str)
def test_the_update_equals_the_reference(
    load: Callable[[str], Policy],
    model: str,
    make_responses: Callable[..., list[Response]],
    run_settings: RunSettings,
    changes: dict[str, Any],
    budget: int,
    checkpointing: bool,
) -> None:
    """Loss and all gradients within 1e-5, in one pack, in several recomputed ones, and row by
    row.
    """
    settings = changed(run_settings, max_grad_norm=1e9, **changes)
    batch = random_batch(make_responses, seed=len(str(changes)))
    expected, metrics, gradients, reached, ours = both(
        load(model), batch, settings, budget=TokenBudget(budget), checkpointing=checkpointing
    )
    loss = sum(epoch[0] for epoch in expected) / len(expected)
    assert metrics.loss == pytest.approx(loss, abs=1e-5)
    assert len(gradients) == len(expected) == 2
    assert max(float(gradient.abs().max()) for gradient in expected[0][1]) > 1e-2
    for (_, wanted), found in zip(expected, gradients, strict=True):
        for want, have in zip(wanted, found, strict=True):
            assert float((want - have).abs().max()) <= 1e-5
    for name in reached:
        assert np.abs(reached[name] - ours[name]).max() <= 1e-5


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_equal_the_reference(
    policy: Policy,
    make_responses: Callable[..., list[Response]],
    run_settings: RunSettings,
    seed: int,
) -> None:
    """For random lengths and a random budget."""
    settings = changed(run_settings, kl_beta=0.05)
    budget = int(np.random.default_rng(seed).integers(1, 300))
    batch = random_batch(make_responses, seed)
    expected, metrics, _, reached, ours = both(policy, batch, settings, budget=TokenBudget(budget))
    assert metrics.loss == pytest.approx(sum(e[0] for e in expected) / 2, abs=1e-5)
    assert all(np.abs(reached[name] - ours[name]).max() <= 1e-5 for name in reached)


def test_checkpointing_computes_every_layer_once_more(
    policy: Policy, make_responses: Callable[..., list[Response]], run_settings: RunSettings
) -> None:
    """In each epoch's backward pass; the model is left as it was."""
    calls: list[None] = []
    layer = policy.model.get_base_model().get_decoder().layers[0].self_attn
    handle = layer.register_forward_hook(lambda *_: calls.append(None))
    start, counts = policy.adapter(), []
    for checkpointing in (False, True):
        calls.clear()
        optimizer = torch.optim.SGD(policy.trainable(), lr=RATE)
        batch = random_batch(make_responses, seed=0)
        update(UpdateContext(policy, TokenBudget(1 << 20), checkpointing), optimizer, batch, [])
        policy.load_adapter(start)
        counts.append(len(calls))
    handle.remove()
    assert counts == [3, 5]
    assert not any(module.training for module in policy.model.modules())


def test_dropped_groups_leave_the_others_as_they_are(
    policy: Policy, make_responses: Callable[..., list[Response]], run_settings: RunSettings
) -> None:
    """Without a KL term, dropping groups of equal rewards only saves work."""
    batch = random_batch(make_responses, seed=3)
    counts: list[int] = []
    embedding = policy.model.get_input_embeddings()
    handle = embedding.register_forward_pre_hook(lambda _, args: counts.append(args[0].shape[1]))
    start = policy.adapter()
    adapters = []
    for changes in ({"kl_beta": 0.0}, {"kl_beta": 0.1}):
        optimizer = torch.optim.SGD(policy.trainable(), lr=RATE)
        policy.settings = changed(run_settings, **changes)
        update(UpdateContext(policy, TokenBudget(1 << 20)), optimizer, batch, [])
        adapters.append(policy.adapter())
        policy.load_adapter(start)
    handle.remove()
    equal_group = batch.prompt_lengths[2] + sum(n - 1 for n in batch.lengths[8:12])
    assert counts[2] - counts[0] == equal_group
    assert any(np.abs(adapters[0][name] - adapters[1][name]).max() > 1e-6 for name in start)
    without = changed(run_settings, kl_beta=0.0)
    expected, _, _, reached, ours = both(policy, batch, without)
    assert len(expected) == 2
    assert all(np.abs(reached[name] - ours[name]).max() <= 1e-5 for name in reached)


@pytest.mark.parametrize("linear_head", [True, False])
@pytest.mark.parametrize(("budget", "checkpointing"), [(1 << 20, False), (60, True), (1, False)])
def test_the_padded_fallback_equals_the_reference(
    policy: Policy,
    make_responses: Callable[..., list[Response]],
    run_settings: RunSettings,
    budget: int,
    checkpointing: bool,
    linear_head: bool,
) -> None:
    """Row by row and all at once, with the model's own logits or W h."""
    policy.path, policy.linear_head = "padded", linear_head
    terms = {"kl_beta": 0.1, "entropy_coefficient": 0.3}
    settings = changed(run_settings, max_grad_norm=1e9, **terms)
    batch = random_batch(make_responses, seed=5)
    how = {"budget": TokenBudget(budget), "checkpointing": checkpointing}
    expected, metrics, gradients, _, _ = both(policy, batch, settings, **how)
    assert metrics.loss == pytest.approx(sum(epoch[0] for epoch in expected) / 2, abs=1e-5)
    for (_, wanted), found in zip(expected, gradients, strict=True):
        for want, have in zip(wanted, found, strict=True):
            assert float((want - have).norm() / want.norm()) <= 1e-4
