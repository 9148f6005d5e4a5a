"""Write `text_models.json`: how transformers names the tensors of causal language models.

The coordinator and the protocol have no torch, so this table stands in for transformers' own
conversion mapping. Each model is built without memory (torch's meta device), with one layer where
its config allows it. Run it after a change of transformers' version:

    .venv/bin/python scripts/make_text_models.py

`models` has a row for each causal model that differs from the rule "names in files are names of
modules below `model`, or `lm_head`":

* `renamed`: pairs of a regular expression and its replacement, applied in order.
* `converted`: regular expressions for (renamed) tensors from which transformers computes others.
* `children`: the causal model's own modules, first its decoder.

`wrappers` has, for each model with more than text, the model type of its text and the path of the
decoder in it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightRenaming
from transformers.models.auto import modeling_auto
from transformers.utils import logging

from pubswap_protocol.base import text_model

TABLE = Path(text_model.__file__).with_name("text_models.json")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
USUAL = ("model", "lm_head")


def built(config: Any, kind: Any = AutoModelForCausalLM) -> Any:
    """The model of a config, without memory; None if its default config builds none."""
    make = kind.from_config if kind is AutoModelForCausalLM else kind
    try:
        with torch.device("meta"):
            return make(config)
    except Exception:  # each model raises its own errors for a config without sizes
        return None


def one_layer(name: str) -> Any:
    """A model's default config with one layer."""
    config = AutoConfig.for_model(name)
    for key in LAYERS:
        if getattr(config, key, None):
            setattr(config, key, 1)
    return config


def row(model: Any) -> dict[str, Any]:
    """What is unusual about a causal model's names."""
    found: dict[str, Any] = {}
    for transform in get_model_conversion_mapping(model, add_legacy=False):
        pattern = transform.compiled_sources.pattern
        scoped = transform.scope_prefix not in (None, "")
        if scoped or (transform.scope_prefix == "" and "^" in pattern):
            raise SystemExit(f"{type(model).__name__} renames within a module; extend this script")
        if type(transform) in (WeightRenaming, PrefixChange):
            found.setdefault("renamed", []).append([pattern, transform.target_patterns[0]])
        elif not all("experts" in source for source in transform.source_patterns):
            found.setdefault("converted", []).append(pattern)  # experts are never adapted
    names = [name for name, _ in model.named_children()]
    prefix = model.base_model_prefix
    children = [prefix if prefix in names else "", *(n for n in names if n != prefix)]
    if children != list(USUAL):
        found["children"] = children
    return found


def causal_models(names: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in sorted(names):
        try:
            model = built(one_layer(name)) or built(AutoConfig.for_model(name))
        except Exception:  # no default config
            model = None
        yield name, row(model) if model is not None else {}


def without_text_model() -> Iterator[str]:
    """Causal models of more than text, whose text part alone is none."""
    for name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        config = CONFIG_MAPPING[name]
        if "text_config" in config.sub_configs or "decoder" in config.sub_configs:
            yield name


def wrappers(causal: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Each model with a text part that is a causal model: the text's type, the decoder's path."""
    classes = (
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
        | modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    )
    for name, kind in sorted(classes.items()):
        try:
            config = AutoConfig.for_model(name)
            text = config.get_text_config().model_type
        except Exception:  # noqa: S112  no default config
            continue
        if text == name or text_model.STAND_INS.get(text, text) not in causal:
            continue
        model = built(config, getattr(transformers, kind))
        yield (
            name,
            [text, decoder_path(model, text) if model is not None else "model.language_model"],
        )


def decoder_path(model: Any, text: str) -> str:
    """Where the text's decoder is in a model; below its output layer, if it has one there."""
    inner = [
        (name, module)
        for name, module in model.named_modules()
        if name and getattr(getattr(module, "config", None), "model_type", None) == text
    ]
    models = [(n, m) for n, m in inner if isinstance(m, transformers.PreTrainedModel)]
    name, module = models[0]
    prefix = getattr(module, "base_model_prefix", "")
    if not hasattr(module, prefix) and module.get_output_embeddings() is not None:
        prefix = "model"  # Llama 4's own prefix is not a module's name
    return f"{name}.{prefix}" if prefix and hasattr(module, prefix) else name


def table() -> dict[str, Any]:
    logging.set_verbosity_error()
    causal = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    more = dict(wrappers(causal))
    models = dict(causal_models(causal - more.keys() - set(without_text_model())))
    return {"transformers": transformers.__version__, "models": models, "wrappers": more}


def written(made: dict[str, Any]) -> str:
    """The table as text, one model a line."""

    def lines(part: dict[str, Any]) -> str:
        return ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in part.items())

    return (
        f'{{\n  "transformers": {json.dumps(made["transformers"])},\n'
        f'  "models": {{\n{lines(made["models"])}\n  }},\n'
        f'  "wrappers": {{\n{lines(made["wrappers"])}\n  }}\n}}\n'
    )


if __name__ == "__main__":
    TABLE.write_text(written(table()), encoding="utf-8")
