"""An adapter as a folder that PEFT's `PeftModel.from_pretrained` and vLLM load."""

import json
from collections.abc import Mapping
from pathlib import Path

from pubswap_protocol.model import ModelCard, module_of, target_modules
from pubswap_protocol.settings import LoraSettings
from pubswap_protocol.tensors.adapter import stack_ranks
from pubswap_protocol.tensors.safetensors_header import read_header

WEIGHTS = "adapter_model.safetensors"


def adapter_config(
    lora: LoraSettings, card: ModelCard, base_model: str, ranks: Mapping[str, int]
) -> dict[str, object]:
    """PEFT's `adapter_config.json` for an adapter whose modules have these ranks.

    The scale alpha / r is the run's for all ranks, which FedEx-LoRA's residuals increase.
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
    (folder / "adapter_config.json").write_text(config, encoding="utf-8")
    (folder / WEIGHTS).write_bytes(adapter)


def ranks_of(adapter: bytes, card: ModelCard) -> dict[str, int]:
    """The rank of each adapted module in an adapter file; raises InvalidAdapter if it lacks one."""
    specs, _ = read_header(adapter)
    return {module_of(a): rank for a, rank in stack_ranks(specs, card.layout).items()}
