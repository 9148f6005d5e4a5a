"""Tokenizers of the kinds that published models have, trained on a few lines."""

import json
from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = [
    "What is 12 + 30? The answer is 42.",
    "Solve for x: 2x = 7. We divide by two, so x = 3.5.",
    "Ein Zug fährt 3 Stunden. How far does it go?",
    "def f(x):\n    return x ** 2",
]
CONTROL = ("<|start|>", "<|end|>", "<|pad|>", "<s>", "</s>")
MARKS = ("<think>", "</think>")


def _trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKS])
    return tokenizer


def byte_level() -> Tokenizer:
    """Bytes as characters, control tokens behind the vocabulary, as Qwen and Llama 3 have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    return _trained(tokenizer, trainer)


def metaspace() -> Tokenizer:
    """Spaces as ▁, bytes for the rest, control tokens before the vocabulary, as Llama 2."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    first = ["<unk>", *CONTROL, *pieces]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=first, show_progress=False)
    data = json.loads(_trained(tokenizer, trainer).to_str())
    # Bytes are tokens of the vocabulary, and no added ones.
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in pieces]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """Pieces with probabilities, control tokens among them, as T5 and XLM-R."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    first = ["<unk>", *CONTROL]
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=first, unk_token="<unk>", show_progress=False
    )
    return _trained(tokenizer, trainer)


def word_piece() -> Tokenizer:
    """Words in pieces, without capitals, as BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["<unk>", *CONTROL], show_progress=False
    )
    return _trained(tokenizer, trainer)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "metaspace": metaspace,
    "unigram": unigram,
    "word piece": word_piece,
}
