"""An adapter as a folder that PEFT's `PeftModel.from_pretrained` and vLLM load.

Its names are those of the published model. They differ from a run's if the base model has a vision
tower, because a run trains the text model alone.
"""

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
    AdapterFile,
    AdapterLayout,
    Array,
    decode_adapter,
    encode_adapter,
    stack_ranks,
)
from pubswap_protocol.tensors.safetensors_header import header_bytes, read_header

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."


def adapter_config(
    lora: LoraSettings, card: ModelCard, base_model: str, ranks: Mapping[str, int]
) -> dict[str, object]:
    """PEFT's `adapter_config.json` for an adapter whose modules have these ranks.

    The scale alpha / r is the run's for all ranks, also those of a personal adapter on top.
    """
    ranks = {published_name(module, card): rank for module, rank in ranks.items()}
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
        "target_modules": [published_name(module, card) for module in target_modules(card.layout)],
    }


def write_peft_folder(
    folder: Path, adapter: bytes, lora: LoraSettings, card: ModelCard, base_model: str
) -> bytes:
    """Write `adapter_config.json` and the adapter's file into `folder`; returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = ranks_of(adapter, card)
    config = json.dumps(adapter_config(lora, card, base_model, ranks), indent=2) + "\n"
    (folder / CONFIG).write_text(config, encoding="utf-8")
    specs, begin = read_header(adapter)
    renamed = {published_name(name, card): spec for name, spec in specs.items()}
    written = header_bytes(renamed) + adapter[begin:]
    (folder / WEIGHTS).write_bytes(written)
    return written


def published_name(name: str, card: ModelCard) -> str:
    """The name of a module or an adapter's tensor in the published model."""
    if not card.text_model:
        return name
    prefix = _PREFIX if name.startswith(_PREFIX) else ""
    return f"{prefix}{card.text_model}.{name.removeprefix(prefix).partition('.')[2]}"


class PublishedAdapter(AdapterFile):
    """The checked adapter in a folder that PubSwap wrote, under the run's names."""

    def __init__(self, folder: Path, card: ModelCard) -> None:
        """Open, and check all but the numbers; raises InvalidAdapter."""
        tensors = {published_name(name, card): s for name, s in card.layout.tensors.items()}
        super().__init__(folder / WEIGHTS, AdapterLayout(tensors=tensors))
        self.layout, self._card = card.layout, card

    def rows(self, name: str, first: int, last: int) -> Array:
        return self.raw(published_name(name, self._card))[first:last]


def read_peft_folder(folder: Path, card: ModelCard, lora: LoraSettings) -> bytes:
    """The canonical file of an adapter that PubSwap or PEFT has written.

    Raises InvalidAdapter unless it has the run's tensors, in float32 or float16, and its alpha / r.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        rank, alpha = float(config["r"]), float(config["lora_alpha"])
        scale = alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank
        if config.get("alpha_pattern"):
            raise InvalidAdapter(f"{folder} has another alpha in some modules, a run's has one.")
        start = config.get("init_lora_weights", True)
        if start not in (True, False, "gaussian"):
            raise InvalidAdapter(
                f"{folder} has init_lora_weights = {start!r}, and such adapters belong to changed "
                "base weights. Let PEFT convert it: give save_pretrained the first adapter as "
                "path_initial_model_for_weight_conversion."
            )
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
        names = {published_name(name, card): name for name in card.layout.tensors}
        file = encode_adapter(card.layout, {names.get(n, n): t for n, t in adapter.items()})
        decode_adapter(card.layout, file)
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
