"""Models of real shapes with random weights, made on the machine, and their stop tokens.

One model is real: SmolLM2-135M-Instruct from a package.
"""

import gc
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from benchmarks.gpu.plan import REAL
from benchmarks.gpu.shapes import SHAPES
from benchmarks.workload import EOS, FIRST_WORD, PAD, save_tokenizer
from pubswap_client.demo.smollm2 import convert

_TINY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# A random model repeats itself: with tied embeddings, the last token is by far the likeliest next
# one. With a small last norm all tokens are about equally likely, so that lengths can be chosen.
_LAST_NORM = 0.05


def config_of(model: str, tiny: bool, **changes: Any) -> Any:
    """The transformers config of a shape, or of a tiny model of its architecture."""
    values = SHAPES[model] | changes
    if tiny:
        values |= _TINY | {"head_dim": 32} if "head_dim" in values else _TINY
    special = {"bos_token_id": None, "eos_token_id": EOS, "pad_token_id": PAD}
    return AutoConfig.for_model(**values, **special, tie_word_embeddings=True)


def random_model(config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A model of this config, made on its device because a CPU would take minutes."""
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def saved_model(model: str, folder: Path, device: torch.device, tiny: bool, **changes: Any) -> Path:
    """The folder of a shape's model under `folder`, made unless an earlier process did so."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    config = config_of(model, tiny, **changes)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    identity = json.dumps([config.to_dict(), str(dtype)], sort_keys=True, default=str)
    name = f"{model}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    whole, part = folder / name, folder / f"{name}.part"
    if whole.exists():
        return whole
    shutil.rmtree(part, ignore_errors=True)
    if model == REAL and not tiny:
        convert(part)
        part.rename(whole)
        return whole
    built = random_model(config, device, dtype)
    with torch.no_grad():
        built.get_decoder().norm.weight.fill_(_LAST_NORM)
    built.save_pretrained(part)
    save_tokenizer(part, config.vocab_size)
    del built
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    part.rename(whole)
    return whole


def stops(vocabulary: int, mean: float, cut: int) -> tuple[int, ...]:
    """As many stop tokens as give responses of random tokens this mean length.

    With p = stops / vocabulary, lengths are geometric and cut: mean = (1 - (1 - p)^cut) / p. So an
    engine samples ragged lengths by itself, without being forced to any.
    """
    low, high = 1e-9, 1.0
    for _ in range(100):
        p = (low * high) ** 0.5
        low, high = (p, high) if (1 - (1 - p) ** cut) / p > mean else (low, p)
    count = max(1, round(p * vocabulary))
    return tuple(range(FIRST_WORD, vocabulary, (vocabulary - FIRST_WORD) // count))[:count]
