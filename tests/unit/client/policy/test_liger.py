"""liger-kernel: installed, missing, not running, or wrong."""

import logging
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from pubswap_client.policy import liger as fused
from pubswap_client.policy.liger import fuse_layers, try_liger
from support.client.models import SIZES

CPU = torch.device("cpu")


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, epsilon)


def swiglu(gate: Tensor, x: Tensor) -> Tensor:
    return torch.nn.functional.silu(gate) * x


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for liger-kernel, whose real kernels need a GPU."""
    functional = ModuleType("liger_kernel.transformers.functional")
    functional.__dict__.update(
        liger_rms_norm=rms_norm, liger_swiglu=swiglu, liger_rope=apply_rotary_pos_emb
    )
    package = ModuleType("liger_kernel")
    package.__spec__ = ModuleSpec("liger_kernel", None)
    monkeypatch.setitem(sys.modules, "liger_kernel", package)
    monkeypatch.setitem(sys.modules, functional.__name__, functional)
    return functional


def test_kernels_that_compute_the_formulas_are_taken(liger: ModuleType) -> None:
    """Norm, gated MLP and rotary embedding, forward and backward."""
    try_liger(CPU)


def test_a_kernel_that_computes_something_else_is_refused(liger: ModuleType) -> None:
    """This norm omits its weight."""
    liger.__dict__["liger_rms_norm"] = lambda x, weight, epsilon: rms_norm(x, weight * 0 + 1, 1e-6)
    with pytest.raises(RuntimeError, match="norm does not match the formula"):
        try_liger(CPU)


def test_a_model_keeps_its_own_layers_where_kernels_do_not_run(
    liger: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For instance without a compiler; the log has the reason, and the model is used without
    them. What the package itself warns of on every machine is not in the log.
    """

    def fail(_: torch.device) -> None:
        logging.getLogger("liger_kernel.backends.registry").warning("No NPU backend")
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(fused, "try_liger", fail)
    model = torch.nn.Linear(2, 2)
    assert not fuse_layers(model)
    assert "liger-kernel does not work here" in caplog.text
    assert "no C compiler" in caplog.text
    assert "NPU" not in caplog.text


def test_other_models_of_the_process_keep_their_own_layers(
    liger: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """liger-kernel patches the module's names, but later models may be on a CPU or of another
    dtype.
    """
    module = sys.modules[LlamaForCausalLM.__module__]
    own_norm, own_rotation = module.LlamaRMSNorm, module.apply_rotary_pos_emb
    monkeypatch.setattr(module, "apply_rotary_pos_emb", own_rotation)  # restored after the test

    def apply(model: object, options: dict[str, bool]) -> None:
        assert options == {
            "fused_linear_cross_entropy": False,
            "cross_entropy": False,
            "swiglu": True,
        }
        module.__dict__.update(LlamaRMSNorm=torch.nn.Identity, apply_rotary_pos_emb=pytest.fail)

    monkeypatch.setattr(fused, "try_liger", lambda _: None)
    monkeypatch.setattr("transformers.integrations.liger.apply_liger_kernel", apply)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    ids = torch.arange(6)[None]
    before = model(input_ids=ids).logits
    for _ in range(2):
        assert fuse_layers(model)
        assert module.LlamaRMSNorm is own_norm
        assert module.apply_rotary_pos_emb is not own_rotation
        assert module.apply_rotary_pos_emb.__wrapped__ is own_rotation
    assert torch.equal(model(input_ids=ids).logits, before)


def test_without_liger_kernel_the_log_says_what_it_would_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once for each loaded model."""
    monkeypatch.setattr(fused, "find_spec", lambda _: None)
    with caplog.at_level(logging.INFO):
        assert not fuse_layers(torch.nn.Linear(2, 2))
    assert "liger-kernel is not installed" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(find_spec("liger_kernel") is None, reason="needs liger-kernel")
def test_its_own_kernels_compute_the_formulas_on_a_gpu() -> None:
    """In bfloat16 up to its rounding, with gradients."""
    try_liger(torch.device("cuda"))
