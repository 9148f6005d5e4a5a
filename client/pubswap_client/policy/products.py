"""Matrix products whose result is not rounded to half precision."""

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of two matrices, accumulated and given in float32."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
