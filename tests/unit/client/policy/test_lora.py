"""LoRA's fused products, against float64 and against PEFT's own path."""

import copy
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.loading import load_model
from pubswap_client.policy.lora import fuse_products, product, sum_of_products
from pubswap_client.policy.policy import Policy
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.update import UpdateContext, update
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.tensors.responses import Response
from support.client.reference import reference_update

# Relative errors; a float32 sum of many terms is rounded several times.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22}
RANKS = [1, 2, 16, 64]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]


def adapted(model: nn.Module, targets: str | list[str], rank: int) -> Any:
    """Add PEFT's LoRA in float32, with alpha / r = 2 and no zero factor."""
    torch.manual_seed(rank)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", "fan_in_fan_out")
        found = get_peft_model(model, config).eval()
    for name, parameter in found.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return found


def distance(found: Tensor, exact: Tensor) -> float:
    """Relative error in the Euclidean norm."""
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).norm() / exact.norm())


def gradient(model: nn.Module) -> Tensor:
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    assert all(part.dtype in (torch.float32, torch.float64) for part in parts)
    return torch.cat(parts)


class Sharing(nn.Module):
    """Modules of different widths with the same input."""

    def __init__(self, inputs: int, outputs: Sequence[int], bias: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(inputs, width, bias) for width in outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 50, 24), (6, 1, 24), (5, 24)])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_outputs_and_gradients_are_the_formulas_but_for_rounding(
    rank: int, bias: bool, shape: tuple[int, ...], device: str, dtype: torch.dtype
) -> None:
    """y = x W^T + bias + (alpha / r) (x A^T) B^T, in float64, for modules that share x."""
    torch.manual_seed(0)
    base = Sharing(24, (40, 1, 16), bias).to(dtype)
    model = adapted(base, ["parts.0", "parts.1", "parts.2"], rank).to(device)
    exact = copy.deepcopy(model).double()
    assert fuse_products(model) == 3
    x, dy = (torch.randn(*shape[:-1], width).to(device, dtype) for width in (24, 57))
    found_x, exact_x = x.clone().requires_grad_(), x.double().requires_grad_()
    found, wanted = model(found_x), exact(exact_x)
    assert found.dtype == dtype
    found.backward(dy)
    wanted.backward(dy.double())
    assert distance(found, wanted) <= ROUNDING[dtype]
    assert found_x.grad is not None and exact_x.grad is not None
    assert distance(found_x.grad, exact_x.grad) <= 1.5 * ROUNDING[dtype]
    assert distance(gradient(model), gradient(exact)) <= ROUNDING[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_gpus_sum_of_products_is_the_formula_but_for_rounding(
    device: str, dtype: torch.dtype
) -> None:
    """scale left right + x weight, with matrices that are transposed views."""
    torch.manual_seed(0)
    left, right, x, weight = (
        torch.randn(shape).to(device, dtype) for shape in ((30, 4), (20, 4), (30, 24), (20, 24))
    )
    found = sum_of_products(left, right.t(), 2.0, x, weight.t())
    exact = 2 * left.double() @ right.double().t() + x.double() @ weight.double().t()
    assert found.dtype == dtype
    assert distance(found, exact) <= ROUNDING[dtype]


def test_a_product_of_bfloat16_is_exact_and_others_keep_their_precision() -> None:
    """It is not rounded to bfloat16, and a later product of float32 is not either."""
    torch.manual_seed(0)
    left, right = torch.randn(64, 96), torch.randn(96, 80)
    low, copied = left.bfloat16(), right.bfloat16().float()
    exact = low.double() @ copied.double()
    for factor in (copied, copied.bfloat16()):
        assert distance(product(low, factor), exact) <= ROUNDING[torch.float32]
    assert distance(left @ right, left.double() @ right.double()) <= ROUNDING[torch.float32]


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("folder", ["tiny_mild_qwen3", "tiny_untied_qwen2"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_models_gradients_are_as_exact_as_with_pefts_products(
    folder: str, rank: int, device: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    """Log-probabilities and gradients have at most 1.3 times PEFT's error against float64."""
    base = AutoModelForCausalLM.from_pretrained(request.getfixturevalue(folder)).to(dtype)
    peft = adapted(base, "all-linear", rank).to(device)
    fused, exact = copy.deepcopy(peft), copy.deepcopy(peft).double()
    assert fuse_products(fused) == 14
    ids, weights = torch.randint(45, (4, 40)).to(device), torch.randn(4, 39).to(device)

    def passed(model: Any) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        every = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        logprobs = every.gather(-1, ids[:, 1:, None]).squeeze(-1)
        (logprobs * weights).sum().backward()
        return logprobs.detach(), gradient(model)

    wanted, others, found = passed(exact), passed(peft), passed(fused)
    for one, other, right in zip(found, others, wanted, strict=True):
        assert 0 < distance(one, right) <= 1.3 * distance(other, right) <= 0.05


@pytest.fixture
def load(
    tiny_mild_qwen3: Path,
    card_of: Callable[[Path], ModelCard],
    random_adapter: Callable[..., Adapter],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Policy]:
    """A function (settings, dtype, fused) that loads a tiny policy on a base model as on a GPU.

    Its weights are rounded to bfloat16, whatever the dtype.
    """

    def loaded(
        settings: RunSettings, dtype: torch.dtype = torch.bfloat16, fused: bool = True
    ) -> Policy:
        fuse = fuse_products if fused else lambda _: 0
        monkeypatch.setattr("pubswap_client.policy.policy.fuse_products", fuse)

        def rounded(source: Path, _: Any) -> Any:
            return load_model(source, torch.bfloat16).to(dtype)

        monkeypatch.setattr("pubswap_client.policy.policy.load_model", rounded)
        policy = Policy.load(tiny_mild_qwen3, card_of(tiny_mild_qwen3), settings, device="cpu")
        policy.load_adapter(random_adapter(policy.card.layout, seed=1, scale=0.05))
        assert policy.dtype == dtype
        return policy

    return loaded


@pytest.mark.parametrize(("budget", "checkpointing"), [(1000, False), (25, False), (25, True)])
@pytest.mark.parametrize("rule", ["fedit", "ffa"])
def test_an_updates_gradient_is_the_plain_one_in_packs_and_recomputed(
    load: Callable[..., Policy],
    run_settings: RunSettings,
    make_responses: Callable[..., list[Response]],
    budget: int,
    checkpointing: bool,
    rule: str,
) -> None:
    """Against a padded pass over the whole batch in float64: at most 1.5 times PEFT's error.

    Under FFA-LoRA it is the gradient of B only.
    """
    groups = [
        Group([4, 5, 6, 7 + seed], make_responses([3, 7, 12, 5], seed), [1.0, 0.0, 0.0, 1.0])
        for seed in range(2)
    ]
    changes: dict[str, Any] = {
        "aggregation": {"rule": rule},
        "grpo": {**run_settings.grpo.model_dump(), "gradient_epochs": 1, "max_grad_norm": 1e9},
    }
    settings = RunSettings.model_validate(run_settings.model_dump() | changes)
    exact = load(settings, torch.float64)
    batch = collate(groups)
    [(_, wanted)] = reference_update(exact, still(exact), batch, settings, [])
    errors = []
    for fused in (True, False):
        policy = load(settings, fused=fused)
        context = UpdateContext(policy, TokenBudget(budget), checkpointing)
        update(context, still(policy), batch, [])
        found = [factor.grad for factor in policy.trainable() if factor.grad is not None]
        assert len(found) == len(policy.trainable()) == len(wanted)
        assert all(gradient.dtype == torch.float32 for gradient in found)
        joined = [torch.cat([part.flatten() for part in parts]) for parts in (found, wanted)]
        errors.append(distance(*joined))
    assert 0 < errors[0] <= 1.5 * errors[1] <= 0.05


def still(policy: Policy) -> torch.optim.Optimizer:
    """An optimizer that changes nothing."""
    return torch.optim.SGD(policy.trainable(), lr=0.0)


def test_without_its_adapter_a_model_is_its_base(
    load: Callable[..., Policy], run_settings: RunSettings, tiny_mild_qwen3: Path
) -> None:
    """Bit for bit inside `reference()`, and not outside it."""
    ids = torch.arange(12)[None]
    half = load(run_settings)
    base = load_model(tiny_mild_qwen3, torch.bfloat16).to(torch.bfloat16)  # buffers, too
    with torch.no_grad():
        wanted = base(input_ids=ids).logits
        with half.reference():
            assert torch.equal(half.model(input_ids=ids).logits, wanted)
        assert not torch.equal(half.model(input_ids=ids).logits, wanted)


def test_an_input_that_modules_share_is_kept_once() -> None:
    """Without a float32 copy of it."""
    model = adapted(Sharing(24, (40, 40, 40), False).bfloat16(), ["parts.0", "parts.1"], rank=2)
    fuse_products(model)
    x = torch.randn(1, 7, 24).bfloat16().requires_grad_()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(x)
    of_x = [tensor for tensor in kept if tensor.shape[-2:] == x.shape[-2:]]
    assert {tensor.data_ptr() for tensor in of_x} == {x.data_ptr()}


def test_other_modules_keep_pefts_products(tiny_qwen3: Path) -> None:
    """Weights of other dtypes, and layers other than Linear."""
    model = adapted(AutoModelForCausalLM.from_pretrained(tiny_qwen3).half(), "all-linear", rank=2)
    assert fuse_products(model) == 0
    sizes = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    transposed = adapted(GPT2LMHeadModel(GPT2Config(**sizes)).bfloat16(), ["c_attn"], rank=2)
    assert fuse_products(transposed) == 0
