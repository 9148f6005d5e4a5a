"""Random models of a few thousand parameters, as Hugging Face folders."""

from pathlib import Path
from typing import Any

CHARACTERS = "0123456789+-*/= abcdefghijklmnopqrstuvwxyz"
PAD, EOS, UNKNOWN = 0, 1, 2
VOCABULARY = 3 + len(CHARACTERS)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # large, so that the distributions are far from uniform
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}


def save_tokenizer(folder: Path) -> None:
    """One token for each character, and three special ones."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *CHARACTERS]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)


def save_model(folder: Path, kind: str, **changes: Any) -> Path:
    """A random model of a few thousand parameters, as a Hugging Face folder."""
    import torch
    from transformers import (
        GraniteConfig,
        GraniteForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )
    from transformers.utils import logging

    logging.disable_progress_bar()
    configs = {
        "qwen3": Qwen3Config,
        "qwen2": Qwen2Config,
        "llama": LlamaConfig,
        "granite": GraniteConfig,
        "mistral": MistralConfig,
    }
    models = {
        "qwen3": Qwen3ForCausalLM,
        "qwen2": Qwen2ForCausalLM,
        "llama": LlamaForCausalLM,
        "granite": GraniteForCausalLM,
        "mistral": MistralForCausalLM,
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        models[kind](configs[kind](**(SIZES | changes))).save_pretrained(folder)
    save_tokenizer(folder)
    return folder
