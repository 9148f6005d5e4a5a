"""An adapter as a folder that PEFT's `PeftModel.from_pretrained` and vLLM load."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.model import ModelCard, module_of, target_modules
from pubswap_protocol.settings import LoraSettings
from pubswap_protocol.tensors.adapter import (
    Adapter,
    AdapterLayout,
    decode_adapter,
    encode_adapter,
    stack_ranks,
)
from pubswap_protocol.tensors.safetensors_header import read_header

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def adapter_config(
    lora: LoraSettings, card: ModelCard, base_model: str, ranks: Mapping[str, int]
) -> dict[str, object]:
    """PEFT's `adapter_config.json` for an adapter whose modules have these ranks.

    The scale alpha / r is the run's for all ranks, also those of a personal adapter on top.
    """
    usual, scale = max(ranks.values()), lora.alpha / lora.rank
    others = {module: rank for module, rank in ranks.items() if rank != usual}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "revision": card.revision,
        "inference_mode": True,
        "r": usual,
        "lora_alpha": scale * usual,
        "rank_pattern": others,
        "alpha_pattern": {module: scale * rank for module, rank in others.items()},
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "target_modules": target_modules(card.layout),
    }


def write_peft_folder(
    folder: Path, adapter: bytes, lora: LoraSettings, card: ModelCard, base_model: str
) -> None:
    """Write `adapter_config.json` and the adapter's canonical file into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = ranks_of(adapter, card)
    config = json.dumps(adapter_config(lora, card, base_model, ranks), indent=2) + "\n"
    (folder / CONFIG).write_text(config, encoding="utf-8")
    (folder / WEIGHTS).write_bytes(adapter)


def read_peft_folder(folder: Path, layout: AdapterLayout, lora: LoraSettings) -> bytes:
    """The canonical file of an adapter that PubSwap or PEFT has written.

    Raises InvalidAdapter unless it has the run's tensors, in float32 or float16, and its alpha / r.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        rank, alpha = float(config["r"]), float(config["lora_alpha"])
        scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
        if config.get("alpha_pattern"):
            raise InvalidAdapter(f"{folder} has another alpha in some modules, a run's has one.")
        adapter = _weights(folder / WEIGHTS)
    except OSError as error:
        raise InvalidAdapter(f"{folder} is no adapter's folder: {error.strerror}.") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidAdapter(f"{folder} holds no readable LoRA adapter: {error!r}") from None
    if not math.isclose(scale, lora.alpha / lora.rank, rel_tol=1e-6):
        raise InvalidAdapter(
            f"{folder} was trained with alpha / r = {scale:g}, the run has "
            f"{lora.alpha / lora.rank:g}; set lora.alpha = {scale * lora.rank:g}."
        )
    try:
        file = encode_adapter(layout, adapter)
        decode_adapter(layout, file)
    except InvalidAdapter as error:
        raise InvalidAdapter(f"{folder}: {error.detail}") from None
    return file


def _weights(path: Path) -> Adapter:
    try:
        weights: Adapter = load_file(path)
    except SafetensorError as error:
        raise InvalidAdapter(f"{path}: {error}") from None
    except TypeError:  # numpy has no such numbers
        raise InvalidAdapter(f"{path} has other numbers, such as bfloat16; use float32.") from None
    return weights


def ranks_of(adapter: bytes, card: ModelCard) -> dict[str, int]:
    """The rank of each adapted module in an adapter file; raises InvalidAdapter if it lacks one."""
    specs, _ = read_header(adapter)
    return {module_of(a): rank for a, rank in stack_ranks(specs, card.layout).items()}
