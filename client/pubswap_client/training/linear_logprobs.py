"""log softmax of a linear layer's outputs at chosen tokens, without holding the outputs.

Of z = (h W^T + b) / temperature only a few rows are ever in memory, in float32. The Jacobian of
a token's log-probability is one vector of h's size, so the forward pass keeps that and the
backward pass is a product of two numbers for each entry: no logits are stored or computed again.

    log p(y) = z_y - logsumexp(z)        d log p(y) / d h = (W_y - p W) / temperature
    H = logsumexp(z) - p z               d H / d h        = -(p (z - p z)) W / temperature
"""

from typing import Any

import torch
from torch import Tensor

# Logits in memory at a time: 32 MiB of float32 stays near a CPU's cache, 512 MiB feeds a GPU.
CPU_LOGITS = 1 << 23
GPU_LOGITS = 1 << 27


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    temperature: float,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log p of `tokens` (n,) and, if asked, entropies (n,), in float32.

    `hidden` is (n, H), `weight` (V, H), `bias` (V,) or None; only `hidden` gets a gradient.
    """
    logprobs, entropies = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, tokens, temperature, entropy
    )
    return logprobs, entropies if entropy else None


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        count, differentiable = len(hidden), ctx.needs_input_grad[0]
        logprobs = torch.empty(count, dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logprobs) if entropy else logprobs.new_empty(0)
        slope = torch.empty_like(hidden) if differentiable else None
        entropy_slope = torch.empty_like(hidden) if differentiable and entropy else None
        limit = GPU_LOGITS if hidden.is_cuda else CPU_LOGITS
        size = max(1, limit // len(weight))
        for start in range(0, count, size):
            part = slice(start, start + size)
            logits = _logits(hidden[part], weight, bias, temperature)
            logits -= logits.amax(dim=1, keepdim=True)
            chosen = logits.gather(1, tokens[part, None])
            shifted = logits.clone() if entropy else None
            masses = logits.exp_()
            total = masses.sum(dim=1, keepdim=True)
            logprobs[part] = (chosen - total.log()).squeeze(1)
            if slope is not None:
                mean = _product(masses.to(weight.dtype), weight) / total
                slope[part] = (weight[tokens[part]] - mean) / temperature
            if shifted is not None:
                expected = (masses * shifted).sum(dim=1, keepdim=True) / total
                entropies[part] = (total.log() - expected).squeeze(1)
                if entropy_slope is not None:
                    masses *= shifted.sub_(expected)
                    mean = _product(masses.to(weight.dtype), weight) / total
                    entropy_slope[part] = mean / -temperature
        ctx.save_for_backward(slope, entropy_slope)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slope, entropy_slope = ctx.saved_tensors
        gradient = gradients[0][:, None] * slope
        if entropy_slope is not None:
            gradient += gradients[1][:, None] * entropy_slope
        return gradient.to(slope.dtype), None, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    if bias is None and hidden.dtype == torch.float32:
        return (hidden / temperature) @ weight.t()  # far fewer numbers to divide
    logits = _product(hidden, weight.t())
    if bias is not None:
        logits += bias
    return logits.div_(temperature)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product in float32; rounding logits to bfloat16 would bias the training."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
