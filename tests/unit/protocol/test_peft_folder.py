"""Adapters' folders, as PubSwap and PEFT write them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import LoraSettings
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter
from pubswap_protocol.tensors.peft_folder import (
    CONFIG,
    WEIGHTS,
    read_peft_folder,
    write_peft_folder,
)
from support.coordinator.coordinator import MODEL

LORA = LoraSettings(rank=4, alpha=8)
CARD = model_card(MODEL, LORA, "small", None)
ADAPTER = {name: values + np.float32(1) for name, values in initial_adapter(CARD.layout, 1).items()}
FILE = encode_adapter(CARD.layout, ADAPTER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_peft_folder(tmp_path, FILE, LORA, CARD, "org/base")
    return tmp_path


def change(folder: Path, **values: Any) -> None:
    """Change keys of the folder's configuration."""
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | values))


def test_an_adapter_is_read_as_it_was_written(folder: Path) -> None:
    """Also as PEFT saves it, with metadata, and in half precision; rsLoRA has the same scale."""
    assert read_peft_folder(folder, CARD, LORA) == FILE
    save_file(ADAPTER, folder / WEIGHTS, {"format": "pt"})
    assert read_peft_folder(folder, CARD, LORA) == FILE
    halves = {name: values.astype(np.float16) for name, values in ADAPTER.items()}
    save_file(halves, folder / WEIGHTS)
    expected = {name: values.astype(np.float32) for name, values in halves.items()}
    assert read_peft_folder(folder, CARD, LORA) == encode_adapter(CARD.layout, expected)
    change(folder, use_rslora=True, lora_alpha=4)  # 4 / sqrt(4) = 8 / 4
    assert read_peft_folder(folder, CARD, LORA)


def test_an_adapter_that_does_not_fit_the_run_is_refused_with_what_differs(folder: Path) -> None:
    """Another scale, rank or start, other tensors, numbers that are not finite, or no adapter."""

    def refused(match: str, lora: LoraSettings = LORA) -> None:
        with pytest.raises(InvalidAdapter, match=match):
            read_peft_folder(folder, model_card(MODEL, lora, "small", None), lora)

    refused("set lora.alpha = 8", LoraSettings(rank=4, alpha=16))
    refused(r"\(4, .*this run takes F32 \(2, ", LoraSettings(rank=2, alpha=4))
    change(folder, alpha_pattern={"q_proj": 3})
    refused("another alpha in some modules")
    change(folder, alpha_pattern={})
    for start in ("pissa", "olora", "pissa_niter_4", "corda", "loftq"):  # they change W
        change(folder, init_lora_weights=start)
        refused(f"has init_lora_weights = '{start}'.*path_initial_model_for_weight_conversion")
    for start in (False, "gaussian", True):
        change(folder, init_lora_weights=start)
        assert read_peft_folder(folder, CARD, LORA) == FILE
    name = next(iter(ADAPTER))
    save_file({**ADAPTER, "magnitude": ADAPTER[name]}, folder / WEIGHTS)
    refused("not this run's, such as 'magnitude'")
    save_file({**ADAPTER, name: ADAPTER[name] * np.float32(np.inf)}, folder / WEIGHTS)
    refused("not finite")
    save_torch({name: torch.zeros(4, 4, dtype=torch.bfloat16)}, folder / WEIGHTS)
    refused("such as bfloat16; use float32")
    (folder / WEIGHTS).write_bytes(FILE[:100])
    refused("adapter_model.safetensors")
    for text in ("{", "[]", '{"r": 0, "lora_alpha": 1}', '{"r": "x", "lora_alpha": 1}', "{}"):
        (folder / CONFIG).write_text(text)
        refused("no readable LoRA adapter")
    (folder / CONFIG).unlink()
    refused("No such file")
