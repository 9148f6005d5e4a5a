"""A snapshot of training as numpy arrays: the factors, and what AdamW remembers of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from pubswap_protocol.adapter import Adapter

OptimizerState = dict[str, dict[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The factors, and by their names AdamW's `step` (), `exp_avg` and `exp_avg_sq` (as they)."""

    adapter: Adapter
    optimizer: OptimizerState


def optimizer_state(optimizer: torch.optim.Optimizer, names: Sequence[str]) -> OptimizerState:
    """A copy of the state; `names` are those of the parameters, in their order."""
    states = optimizer.state_dict()["state"]
    return {
        names[place]: {key: value.cpu().numpy().copy() for key, value in state.items()}
        for place, state in states.items()
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, names: Sequence[str], state: OptimizerState
) -> None:
    """Replace an optimizer's state by a copy; its learning rate and the like stay as they are."""
    places = {name: place for place, name in enumerate(names)}
    states = {
        places[name]: {key: torch.tensor(array) for key, array in arrays.items()}
        for name, arrays in state.items()
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
