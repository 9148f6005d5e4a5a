"""From token ids to text and back, with the `tokenizers` package alone.

A decoder may replace one character by a thousand, twice: what a token can become is bounded when
the tokenizer is loaded, and what a response has become when it is decoded.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import BPE

from pubswap_protocol.verifiers.registry import MAX_RESPONSE_CHARACTERS

MOST_PIECE_CHARACTERS = 1024  # the longest pieces of known vocabularies are runs of 128 to 256
MOST_GROWTH = 8.0  # of a text by all replacements of its decoder
_NEVER_GROW = {
    *("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Strip", "WordPiece")
}


def load_tokenizer(data: bytes) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`; raises ValueError if it is not one, or not bounded."""
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"This is not a tokenizer.json: {error}") from None
    _check_bounded(tokenizer)
    return tokenizer


def fewest_tokens(tokenizer: Tokenizer, prompt: str) -> int:
    """The tokens of a prompt by itself: a chat template may trim it, and adds its own."""
    return len(tokenizer.encode(prompt.strip(), add_special_tokens=False).ids)


def decode(tokenizer: Tokenizer, tokens: NDArray[np.int32]) -> str:
    """The text of a response (T,), without special tokens: what a verifier reads.

    Of a text that is too long for every verifier, just as much as shows that it is.
    """
    text = str(tokenizer.decode(tokens.tolist(), skip_special_tokens=True))
    return text[: MAX_RESPONSE_CHARACTERS + 1]


def _check_bounded(tokenizer: Tokenizer) -> None:
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)
    if longest > MOST_PIECE_CHARACTERS:
        raise ValueError(
            f"The tokenizer has a token of {longest} characters; at most {MOST_PIECE_CHARACTERS} "
            "are taken."
        )
    growth = math.prod(_growths(_decoder(tokenizer)))
    if growth > MOST_GROWTH:
        raise ValueError(
            f"The tokenizer's decoder may make a text {growth:g} times as long; at most "
            f"{MOST_GROWTH:g} times is taken."
        )


def _decoder(tokenizer: Tokenizer) -> Any:
    """The decoder as the library has read it, without the vocabulary around it."""
    if tokenizer.decoder is None:
        return {"type": "Fuse"}
    bare = Tokenizer(BPE())
    bare.decoder = tokenizer.decoder
    return json.loads(bare.to_str())["decoder"]


def _growths(decoder: Any) -> Iterator[float]:
    """How many times as long each step of a decoder can make a text."""
    kind = decoder["type"]
    if kind == "Sequence":
        for part in decoder["decoders"]:
            yield from _growths(part)
    elif kind == "Replace":
        content, pattern = len(decoder["content"]), decoder["pattern"].get("String")
        # A regular expression, or nothing, matches between any two characters too.
        yield max(1.0, content / len(pattern)) if pattern else 1.0 + content
    elif kind not in _NEVER_GROW:
        raise ValueError(f"The tokenizer's decoder {kind!r} is not known here.")
