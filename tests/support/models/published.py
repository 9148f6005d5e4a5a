"""Random models in folders as transformers saves the classes that are published.

Those with a vision tower, of a few thousand parameters each.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.utils import logging

from support.client.architectures import CASES, COMMON, VOCABULARY
from support.client.models import save_tokenizer

TOKENS = {
    f"{kind}_token_{form}": VOCABULARY - 1 - n
    for n, kind in enumerate(("image", "video", "vision_start", "vision_end", "audio", "boi"))
    for form in ("id", "index")
}
# Heads of 32, the smallest that vLLM computes on a CPU.
TEXT = COMMON | {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "depth": 2,
    "num_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": TEXT["hidden_size"],
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
LINEAR = CASES["Qwen3.5"].config
GEMMA_4 = {
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "global_head_dim": 8,
    "num_kv_shared_layers": 0,
}
# The class, what is particular about its text, and whether its output layer is the embedding.
PUBLISHED: dict[str, tuple[str, dict[str, Any], bool]] = {
    "gemma3": ("Gemma3ForConditionalGeneration", CASES["Gemma 3"].config, True),
    "gemma4": ("Gemma4ForConditionalGeneration", GEMMA_4 | {"global_head_dim": 32}, True),
    "mistral3": ("Mistral3ForConditionalGeneration", {"model_type": "ministral3"}, False),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", {"rope_parameters": MROPE}, True),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", {"rope_parameters": MROPE}, False),
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", LINEAR, True),
    "llava": ("LlavaForConditionalGeneration", {"model_type": "llama"}, False),
}


def save_published(folder: Path, kind: str, **more: torch.Tensor) -> Any:
    """Save a random model of a published class, with a tokenizer; returns the model.

    The file also holds the tensors `more`.
    """
    logging.disable_progress_bar()
    name, text, tied = PUBLISHED[kind]
    vision = VISION | ({"model_type": "clip_vision_model"} if kind == "llava" else {})
    if kind == "mistral3":
        vision["model_type"] = "pixtral"
    config = AutoConfig.for_model(
        kind,
        text_config=TEXT | text | {"tie_word_embeddings": tied},
        vision_config=vision,
        tie_word_embeddings=tied,
        mm_tokens_per_image=4,
        **TOKENS,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = getattr(transformers, name)(config)
        for parameter in model.parameters():  # some start at zero, and would hide what is missing
            torch.nn.init.normal_(parameter, 0, 0.2)
    model.eval().save_pretrained(folder)
    save_tokenizer(folder)
    if more:
        file = folder / "model.safetensors"
        save_file(load_file(file) | more, file, metadata={"format": "pt"})
    return model
