"""A global adapter as a folder that `peft.PeftModel.from_pretrained` loads."""

import json
from pathlib import Path

from pubswap_protocol.messages import RunView
from pubswap_protocol.model import target_modules


def adapter_config(run: RunView, base_model: str) -> dict[str, object]:
    """PEFT's `adapter_config.json` for the run's LoRA settings."""
    lora = run.settings.lora
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "revision": run.model.revision,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "target_modules": target_modules(run.model.layout),
    }


def write_peft_folder(run: RunView, adapter: bytes, folder: Path, base_model: str) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(adapter_config(run, base_model), indent=2) + "\n"
    (folder / "adapter_config.json").write_text(config, encoding="utf-8")
    (folder / "adapter_model.safetensors").write_bytes(adapter)
