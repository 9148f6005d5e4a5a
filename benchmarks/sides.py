"""The two sides behind one interface."""

import logging
import warnings
from pathlib import Path
from typing import Protocol

import torch
from our_side import OurSide
from timing import Outcome, Times
from transformers.utils.logging import disable_progress_bar
from trl_side import TrlSide
from workload import Workload

from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter


class Side(Protocol):
    """Ours or TRL's; both begin at the adapter `start`."""

    start: Adapter

    def reset(self) -> None: ...
    def update(self, workload: Workload) -> Outcome: ...
    def step(self, workload: Workload) -> Times: ...


def make_side(
    name: str, folder: Path, settings: RunSettings, device: str, trl_rows: int, scratch: Path
) -> Side:
    """The side called "ours" or "trl", loaded and at the start adapter."""
    if name == "ours":
        return OurSide(folder, settings, device)
    return TrlSide(folder, settings, device, trl_rows, scratch)


def quiet(threads: int) -> None:
    """Pin the threads, and keep the libraries' own messages out of the table."""
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore")
    disable_progress_bar()
    for name in ("transformers", "trl", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
