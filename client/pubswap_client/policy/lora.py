"""LoRA on a linear layer as one function: y = x W^T + bias + (alpha / r) (x A^T) B^T.

PEFT scales the second term and adds it in passes of their own. On a bfloat16 base it also computes
it in float32: for each module it keeps a float32 copy of x, and moves more bytes than the layer's
own product does. Here the products are in the base's dtype, accumulated in float32 and added to y
in place, and x is kept once for all modules that read it. The factors and their gradients stay
float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def fuse_products(model: nn.Module) -> int:
    """Move PEFT's linear modules over plain weights to the fused path; returns how many.

    Names, parameters, saving and `disable_adapter` stay PEFT's. Other modules keep its path.
    """
    modules = [module for module in model.modules() if _is_plain(module)]
    for module in modules:
        module.forward = MethodType(_forward, module)
    return len(modules)


def _is_plain(module: nn.Module) -> bool:
    if type(module) is not LoraLinear or type(module.base_layer) is not nn.Linear:
        return False
    return module.base_layer.weight.dtype in (torch.float32, torch.bfloat16)


def _forward(module: Any, x: Tensor) -> Tensor:
    """Replacement of PEFT's forward, for one adapter without dropout."""
    if module.disable_adapters or module.merged:
        output: Tensor = LoraLinear.forward(module, x)
        return output
    (name,) = module.active_adapters
    layer, a, b = module.base_layer, module.lora_A[name].weight, module.lora_B[name].weight
    output = _FusedLora.apply(  # type: ignore[no-untyped-call]
        x, layer.weight, layer.bias, a, b, module.scaling[name]
    )
    return output


class _FusedLora(torch.autograd.Function):
    """x is (..., in), W (out, in), A (r, in), B (out, r); W and bias get no gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        a, b = a.to(x.dtype), b.to(x.dtype)
        rows = x.flatten(0, -2)
        inner = rows @ a.t()
        if x.is_cuda and bias is None:
            y = sum_of_products(inner, b.t(), scale, rows, weight.t()).view(*x.shape[:-1], -1)
        else:
            y = nn.functional.linear(x, weight, bias)
            y.view(-1, len(weight)).addmm_(inner, b.t(), alpha=scale)
        ctx.save_for_backward(x, weight, a, b, inner)
        ctx.scale = scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, inner = ctx.saved_tensors
        dy = dy.flatten(0, -2)
        dinner = dy @ b  # unscaled, because each product below applies the scale once
        dx = da = db = None
        if ctx.needs_input_grad[0]:
            if dy.is_cuda:
                dx = sum_of_products(dinner, a, ctx.scale, dy, weight).view(x.shape)
            else:
                dx = (dy @ weight).addmm_(dinner, a, alpha=ctx.scale).view(x.shape)
        if ctx.needs_input_grad[3]:
            da = product(dinner.t(), x.flatten(0, -2)).mul_(ctx.scale)
        if ctx.needs_input_grad[4]:
            db = product(dy.t(), inner).mul_(ctx.scale)
        return dx, None, None, da, db, None


def sum_of_products(left: Tensor, right: Tensor, scale: float, x: Tensor, weight: Tensor) -> Tensor:
    """scale left right + x weight, rounded once.

    The small product comes first, because a GPU adds it while it computes the large one. Added
    afterwards, it would be another pass over the output.
    """
    output = x.new_empty((len(x), weight.shape[1]))
    return output.addmm_(left, right, beta=0, alpha=scale).addmm_(x, weight)


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of two matrices, accumulated and returned in float32.

    On a CPU, `right` may be a float32 copy of a bfloat16 matrix, made once for several products.
    """
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    with _by_bfloat16() if left.dtype == torch.bfloat16 else nullcontext():
        return left.float() @ right.float()


@contextmanager
def _by_bfloat16() -> Iterator[None]:
    """Inside, a CPU that has bfloat16 rounds the factors of float32 products to it.

    It is several times faster, and exact for factors that are copies of bfloat16. Products in
    bfloat16 itself would round their results as well.
    """
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before
