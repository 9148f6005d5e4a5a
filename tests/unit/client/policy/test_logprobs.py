"""Log-probabilities against a full softmax, row by row and without packs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pubswap_client.policy import logprobs as module
from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.logprobs import (
    CompiledMasses,
    linear_logprobs,
    masses_of,
    response_logprobs,
    score_pack,
)
from pubswap_client.policy.packing import pack
from pubswap_client.policy.policy import Policy
from pubswap_protocol.tensors.responses import Response

TEMPERATURE = 0.7
PROMPTS = ([4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17])


@pytest.fixture
def groups(make_responses: Callable[..., list[Response]]) -> list[Group]:
    """Three prompts, with responses of 1 to 12 tokens."""
    lengths = ([3, 12], [1, 5], [7, 2])
    return [
        Group(prompt, make_responses(sizes, seed=i), [1.0, 0.0])
        for i, (prompt, sizes) in enumerate(zip(PROMPTS, lengths, strict=True))
    ]


@pytest.fixture
def batch(groups: list[Group]) -> Batch:
    """The three groups as one batch."""
    return collate(groups)


def alone(policy: Policy, group: Group, response: Response) -> tuple[torch.Tensor, torch.Tensor]:
    """Score one unpadded sequence: all logits, a full softmax, then a loop."""
    ids = torch.tensor([[*group.prompt, *response.tokens.tolist()]])
    with torch.no_grad():
        probabilities = torch.softmax(policy.model(ids).logits[0] / TEMPERATURE, dim=-1)
    first = len(group.prompt) - 1
    logprobs, entropies = [], []
    for t, token in enumerate(response.tokens.tolist()):
        p = probabilities[first + t]
        logprobs.append(p[token].log())
        entropies.append(-(p * p.log()).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def test_log_probabilities_and_entropies_are_those_of_the_full_softmax(
    policy: Policy, groups: list[Group], batch: Batch
) -> None:
    """Of the logits divided by the temperature, each at the position before its token."""
    everything = pack(batch, range(batch.rows), policy.device)
    with policy.packed():
        scores = score_pack(policy, everything, TEMPERATURE, entropy=True)
    assert scores.entropy is not None
    rows = [(group, response) for group in groups for response in group.responses]
    parts = [alone(policy, group, response) for group, response in rows]
    assert torch.allclose(scores.logprobs, torch.cat([part[0] for part in parts]), atol=1e-5)
    assert torch.allclose(scores.entropy, torch.cat([part[1] for part in parts]), atol=1e-5)


@pytest.mark.parametrize("budget", [1, 20, 40, 1 << 20])
def test_the_budget_does_not_change_log_probabilities(
    policy: Policy, groups: list[Group], batch: Batch, budget: int
) -> None:
    """For any number of tokens at a time, each row equals the row alone, with 0 on padding."""
    found = response_logprobs(policy, batch, TEMPERATURE, budget)
    assert found.shape == (batch.rows, batch.width)
    rows = [(group, response) for group in groups for response in group.responses]
    for row, (group, response) in enumerate(rows):
        length = len(response.tokens)
        assert torch.allclose(found[row, :length], alone(policy, group, response)[0], atol=1e-5)
        assert (found[row, length:] == 0).all()


@pytest.fixture
def layer() -> dict[str, torch.Tensor]:
    """Hidden states, a linear layer with a bias, and tokens, in float64."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"hidden": (11, 5), "weight": (23, 5), "bias": (23,)}
    made = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).float()
        for name, shape in sizes.items()
    }
    return made | {"tokens": torch.randint(0, 23, (11,), generator=generator)}


@pytest.mark.parametrize(("chunk", "cached"), [(1, 1), (50, 1 << 20), (1 << 20, 50)])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_value_and_gradient_equal_autograd_s_through_whole_logits(
    layer: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    cached: int,
    entropy: bool,
    bias: bool,
) -> None:
    """For any number of logits held or cached at a time, with and without entropies and a bias."""
    monkeypatch.setattr(module, "CPU_LOGITS", chunk)
    monkeypatch.setattr(module, "CACHED_LOGITS", cached)
    weight, tokens = layer["weight"], layer["tokens"]
    offset = layer["bias"] if bias else None
    ours = layer["hidden"].clone().requires_grad_()
    logprobs, entropies = linear_logprobs(ours, weight, offset, tokens, TEMPERATURE, entropy)
    plain = layer["hidden"].double().requires_grad_()
    logits = plain @ weight.double().t() + (layer["bias"].double() if bias else 0)
    everything = (logits / TEMPERATURE).log_softmax(dim=1)
    wanted = everything.gather(1, tokens[:, None]).squeeze(1)
    coefficients = torch.linspace(-1, 2, len(tokens))
    value, expected = (logprobs * coefficients).sum(), (wanted * coefficients).sum()
    if entropy:
        assert entropies is not None
        wanted_entropy = -(everything.exp() * everything).sum(dim=1)
        assert torch.allclose(entropies.double(), wanted_entropy, atol=1e-5)
        value = value + (entropies * coefficients.flip(0)).sum()
        expected = expected + (wanted_entropy * coefficients.flip(0)).sum()
    value.backward()
    expected.backward()
    assert torch.allclose(logprobs.double(), wanted, atol=1e-5)
    assert ours.grad is not None
    assert plain.grad is not None
    assert torch.allclose(ours.grad.double(), plain.grad, atol=1e-5)


def test_low_precision_states_are_scored_in_float32(layer: dict[str, torch.Tensor]) -> None:
    """bfloat16 inputs are multiplied exactly, without intermediate rounding to bfloat16."""
    hidden = layer["hidden"].bfloat16().requires_grad_()
    weight = layer["weight"].bfloat16()
    logprobs, _ = linear_logprobs(hidden, weight, None, layer["tokens"], 1.0)
    logits = hidden.detach().double() @ weight.double().t()
    wanted = logits.log_softmax(dim=1).gather(1, layer["tokens"][:, None]).squeeze(1)
    assert logprobs.dtype == torch.float32
    assert torch.allclose(logprobs.double(), wanted, atol=1e-5)
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_whole_logits_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved memory grows with the hidden size, not with the vocabulary."""
    monkeypatch.setattr(module, "CPU_LOGITS", 4 * 5000)
    hidden = torch.randn(400, 8, requires_grad=True)
    weight, tokens = torch.randn(5000, 8), torch.zeros(400, dtype=torch.int64)
    saved: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        linear_logprobs(hidden, weight, None, tokens, 1.0)[0].sum()
    assert sum(saved) == 400 * 8


def test_the_compiled_masses_are_those_of_logits_over_temperature() -> None:
    """Against float64, with logits so far apart that most masses are 0; without masses too."""
    logits = 300 * torch.randn(6, 50, dtype=torch.float32)
    tokens = torch.randint(50, (6,))
    exact = logits.double() / 0.7
    shifted = exact - exact.amax(dim=1, keepdim=True)
    masses, total, chosen = masses_of(logits, tokens, 0.7, torch.float32)
    assert masses is not None
    assert torch.allclose(masses.double(), shifted.exp(), atol=1e-4)
    assert torch.allclose(total.double(), shifted.exp().sum(dim=1, keepdim=True), atol=1e-4)
    assert torch.allclose(chosen.double(), shifted.gather(1, tokens[:, None]), atol=1e-3)
    none, *others = masses_of(logits, tokens, 0.7, None)
    assert none is None
    assert all(map(torch.equal, others, (total, chosen)))


def broken(*_: object, **__: object) -> Any:
    def call(*_: object) -> None:
        raise RuntimeError("no C compiler found\n\nSet TORCHDYNAMO_VERBOSE=1")

    return call


def test_without_a_compiler_the_masses_are_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried once, and the log says why it failed."""
    monkeypatch.setattr(torch, "compile", broken)
    logits, tokens = torch.randn(6, 50), torch.randint(50, (6,))
    compiled = CompiledMasses()
    wanted = masses_of(logits, tokens, 0.7, torch.float32)
    for _ in range(2):
        found = compiled(logits.clone(), tokens, 0.7, torch.float32)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine is not None and theirs is not None
            assert torch.allclose(mine, theirs, atol=1e-6)
    assert [record.message for record in caplog.records] == [
        "torch.compile does not work here, so updates take longer: no C compiler found"
    ]


def test_memory_that_runs_out_in_the_compiled_kernel_is_not_taken_for_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The update then goes on with smaller packs, and the kernel stays in use."""

    def full(*_: object, **__: object) -> Any:
        def call(*_: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        return call

    monkeypatch.setattr(torch, "compile", full)
    compiled = CompiledMasses()
    with pytest.raises(torch.OutOfMemoryError):
        compiled(torch.randn(6, 50), torch.randint(50, (6,)), 0.7, torch.float32)
    assert compiled.works
