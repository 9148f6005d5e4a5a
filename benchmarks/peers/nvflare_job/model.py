"""The adapter as a torch module, with the tensors' real names."""

import torch
from coordination.payload import shapes
from torch import nn


class Adapter(nn.Module):
    """An adapter of zeros in the right shapes."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        for name, shape in shapes(megabytes).items():
            *folders, last = name.split(".")
            module: nn.Module = self
            for folder in folders:
                if not hasattr(module, folder):
                    module.add_module(folder, nn.Module())
                module = getattr(module, folder)
            module.register_parameter(last, nn.Parameter(torch.zeros(shape)))
