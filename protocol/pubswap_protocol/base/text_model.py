"""The text model in a folder of a base model, and the names of its tensors, without torch.

Files and transformers' modules may have different names: transformers renames some tensors when it
loads them, and models with a vision tower hold the text model under a prefix. The names here are
those of transformers' causal model. `text_models.json` is its table of conversions, written by
`scripts/make_text_models.py`.
"""

import json
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pubswap_protocol.errors import InvalidSettings

# transformers has no causal model for these, but for text alone this one computes the same.
STAND_INS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
# For transformers' `key_mapping`, which must agree with `tensors`.
WITHOUT_PLACE = {r"^(?:model\.)?(?:language_model|text_model)\.": ""}
_PLACE = re.compile(next(iter(WITHOUT_PLACE)))
_EXTRA = ".eh_proj."  # joins the next token to the hidden states, in a layer numbered like others
_EXTRA_LAYER = re.compile(r"(?:^|\.)(?:mtp|mtp_\w+|nextn\w*)\.")
_KEYS_AND_VALUES = re.compile(r"\.self_attn\.[kv]_(?:proj|norm)\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")


@dataclass(frozen=True)
class TextTensors:
    """The text model's tensors: its names, by the names in the files.

    transformers computes the `converted` ones from those of the files, such as three projections
    from one tensor. The `dropped` are in the files and not in the model: layers that predict more
    than one token, and the keys and values of layers that use those of earlier ones.
    """

    names: dict[str, str]
    converted: frozenset[str]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class TextModel:
    """A folder's text model."""

    kind: str  # transformers' model type of the causal model
    place: str  # the decoder's module in the published model, if that is not the causal model
    config: Mapping[str, Any]

    def tensors(self, names: Iterable[str]) -> TextTensors:
        """The text model's tensors among those with these names.

        Raises InvalidSettings if there are more layers than the config says.
        """
        row, named = _row(self.kind), sorted(names)
        children = row.get("children", ["model", "lm_head"])
        if self.place and any(map(_PLACE.match, named)):
            named = [name for name in named if _PLACE.match(name) or name.startswith("lm_head.")]
        elif self.place:
            named = [name for name in named if name.split(".")[0] in children]
        found: dict[str, str] = {}
        converted, dropped = set(), []
        extra = {_layer(name) for name in named if _EXTRA in name}
        for name in named:
            if self._drops(name, extra):
                dropped.append(name)
                continue
            ours = _PLACE.sub("", name) if self.place else name
            for pattern, target in row.get("renamed", ()):
                ours = _renamed(ours, pattern, target)
            if ours.split(".")[0] not in children and children[0]:
                ours = f"{children[0]}.{ours}"
            found[name] = ours
            if any(re.search(pattern, ours) for pattern in row.get("converted", ())):
                converted.add(ours)
        return TextTensors(found, frozenset(converted), tuple(dropped))

    def _drops(self, name: str, extra: Container[str]) -> bool:
        """Whether transformers drops a tensor; `extra` are the layers for more than one token."""
        layer, number = _layer(name), _LAYER.search(name)
        if _EXTRA_LAYER.search(name) or layer in extra:
            return True
        count = next((self.config[key] for key in _LAYERS if self.config.get(key)), None)
        if number is None or not isinstance(count, int):
            return False
        if int(number[1]) >= count:
            raise InvalidSettings(
                f"The model's files have {layer}, and its config.json says that it has {count} "
                "layers, so this is not the model that was published. Use the config.json that "
                "belongs to the files."
            )
        reused = self.config.get("num_kv_shared_layers") or 0
        return int(number[1]) >= count - reused and _KEYS_AND_VALUES.search(name) is not None


def text_model(config: Mapping[str, Any]) -> TextModel:
    """The text model of a config.json.

    Raises InvalidSettings if transformers has no causal model for the text of such a model.
    """
    kind, wrappers = config.get("model_type"), _table()["wrappers"]
    inner = config.get("text_config")
    if kind in wrappers:
        usual, place = wrappers[kind]
        inner = inner if isinstance(inner, Mapping) else config
        text = usual if inner is config else inner.get("model_type", usual)
    elif isinstance(inner, Mapping) and kind not in _table()["models"]:
        text, place = inner.get("model_type"), "model.language_model"
    else:
        return TextModel(str(kind), "", config)
    text = STAND_INS.get(text, text)
    if text not in _table()["models"]:
        raise InvalidSettings(
            f"A {kind} model cannot be trained: transformers has no causal model for its text part "
            f"({text}). Use a model listed in docs/models.md."
        )
    return TextModel(text, place, inner)


def _layer(name: str) -> str:
    """The layer that a tensor belongs to, such as `model.layers.2`; "" if to none."""
    found = _LAYER.search(name)
    return name[: found.end() - 1] if found else ""


def _renamed(name: str, pattern: str, target: str) -> str:
    """As transformers renames: the first match, with group 1 of the branch that matched."""
    found = re.search(pattern, name)
    if found is None:
        return name
    if "\\1" in target:
        branch = next(group for group, text in found.groupdict().items() if text is not None)
        target = target.replace("\\1", found[found.re.groupindex[branch] + 1])
    return name.replace(found[0], target, 1)


def _row(kind: str) -> dict[str, Any]:
    row: dict[str, Any] = _table()["models"].get(kind, {})
    return row


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(
        Path(__file__).with_name("text_models.json").read_text(encoding="utf-8")
    )
    return table
