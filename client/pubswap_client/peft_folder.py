"""An adapter as a folder that PEFT's `PeftModel.from_pretrained` and vLLM load."""

import json
from pathlib import Path

from pubswap_protocol.model import ModelCard, target_modules
from pubswap_protocol.settings import LoraSettings

WEIGHTS = "adapter_model.safetensors"


def adapter_config(lora: LoraSettings, card: ModelCard, base_model: str) -> dict[str, object]:
    """PEFT's `adapter_config.json` for a run's LoRA settings on its base model."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "revision": card.revision,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
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
    config = json.dumps(adapter_config(lora, card, base_model), indent=2) + "\n"
    (folder / "adapter_config.json").write_text(config, encoding="utf-8")
    (folder / WEIGHTS).write_bytes(adapter)
