"""liger-kernel's fused layers, used on a GPU if they are installed and work."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pubswap_client.policy.memory import reason

log = logging.getLogger(__name__)


def fuse_layers(model: Any) -> bool:
    """Put liger-kernel's norms, RoPE and gated MLPs into a model; returns whether it did.

    They compute the same in fewer passes over memory, and keep half as much for the backward pass.
    Its fused loss is not used, because ours is leaner. Models that it does not know stay unchanged.
    """
    if find_spec("liger_kernel") is None:
        log.info("liger-kernel is not installed; with it, updates are faster and take less memory.")
        return False
    # It warns of each backend for other hardware that it does not find.
    logging.getLogger("liger_kernel").setLevel(logging.ERROR)
    try:
        # Use transformers' integration, because liger-kernel's function for a loaded model is
        # private.
        from transformers.integrations.liger import apply_liger_kernel

        try_liger(torch.device("cuda"))
        # Its layer for experts differs from a gated MLP, and try_liger does not test it.
        dense = not any("experts" in name for name, _ in model.named_modules())
        kernels = {"fused_linear_cross_entropy": False, "cross_entropy": False, "swiglu": dense}
        with _for_this_model_alone(model):
            apply_liger_kernel(model, kernels)
    except Exception as error:  # whatever it is, the model's own layers still work
        log.warning("liger-kernel does not work here; continuing without it: %s", reason(error))
        return False
    return True


@contextmanager
def _for_this_model_alone(model: Any) -> Iterator[None]:
    """Undo the replacement of classes in the model's module, so that later models get their own.

    Functions stay replaced for half precision on a GPU, because layers look them up by name.
    """
    module = sys.modules[type(model).__module__]
    originals = dict(vars(module))
    try:
        yield
    finally:
        for name, original in originals.items():
            fused = getattr(module, name)
            if fused is not original:
                setattr(
                    module,
                    name,
                    original if isinstance(original, type) else _either(fused, original),
                )


def _either(fused: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """The fused function for half precision on a GPU, the model's own for anything else."""
    original = getattr(original, "__wrapped__", original)  # already replaced, for another model

    @wraps(original)
    def chosen(first: Tensor, *others: Any, **named: Any) -> Any:
        half = first.is_cuda and first.dtype in (torch.bfloat16, torch.float16)
        return (fused if half else original)(first, *others, **named)

    return chosen


def try_liger(device: torch.device) -> None:
    """Run liger-kernel's kernels forward and backward. Raises if one fails or is wrong."""
    from liger_kernel.transformers.functional import liger_rms_norm, liger_rope, liger_swiglu

    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float32)
        return values.to(device, torch.bfloat16)

    x, gate, weight = random(4, 64), random(4, 64), random(64)
    query, angles = random(1, 2, 4, 64), random(1, 4, 32).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    turned = torch.cat([-query[..., 32:], query[..., :32]], dim=-1).float()
    normed = x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    expected = [
        normed * weight,
        torch.nn.functional.silu(gate.float()) * x,
        query.float() * cos[:, None] + turned * sin[:, None],
    ]
    inputs = [tensor.clone().requires_grad_() for tensor in (x, gate, query)]
    states, gated, rotated = inputs
    outputs = [
        liger_rms_norm(states, weight, 1e-6),
        liger_swiglu(gated, states),
        liger_rope(rotated.clone(), rotated.clone(), cos, sin)[0],
    ]
    for name, output, other in zip(("norm", "SwiGLU", "rotation"), outputs, expected, strict=True):
        if not torch.allclose(output.float(), other.float(), rtol=0.05, atol=0.05):
            raise RuntimeError(f"its {name} does not match the formula")
    torch.autograd.backward([output.float().sum() for output in outputs])
    if not all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in inputs):
        raise RuntimeError("its gradients are not finite")
