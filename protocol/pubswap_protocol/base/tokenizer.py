"""Convert between token ids and text, with the `tokenizers` package alone.

A decoder may replace one character by a thousand, and do so twice. Therefore loading a tokenizer
limits how long a token can become, and decoding limits the length of a response.
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

MAX_PIECE_CHARACTERS = 1024  # the longest pieces of known vocabularies are runs of 128 to 256
MAX_GROWTH = 8.0  # factor by which all of a decoder's replacements may lengthen a text
_NEVER_GROW = {
    *("BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Strip", "WordPiece")
}


def load_tokenizer(data: bytes) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`; raises ValueError if it is invalid or unbounded."""
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"This is not a tokenizer.json: {error}") from None
    _check_bounded(tokenizer)
    return tokenizer


def fewest_tokens(tokenizer: Tokenizer, prompt: str) -> int:
    """A lower bound on a prompt's tokens: a chat template may trim it, but then adds its own."""
    return len(tokenizer.encode(prompt.strip(), add_special_tokens=False).ids)


def decode(tokenizer: Tokenizer, tokens: NDArray[np.int32]) -> str:
    """The text of tokens (T,), special ones written out: nothing is trained that nobody reads.

    Truncated to one character more than any verifier accepts.
    """
    text = str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))
    return text[: MAX_RESPONSE_CHARACTERS + 1]


def _check_bounded(tokenizer: Tokenizer) -> None:
    longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)
    if longest > MAX_PIECE_CHARACTERS:
        raise ValueError(
            f"The tokenizer has a token of {longest} characters; at most {MAX_PIECE_CHARACTERS} "
            "are allowed."
        )
    growth = math.prod(_growths(_decoder(tokenizer)))
    if growth > MAX_GROWTH:
        raise ValueError(
            f"The tokenizer's decoder may make a text {growth:g} times as long; at most "
            f"{MAX_GROWTH:g} times is allowed."
        )


def _decoder(tokenizer: Tokenizer) -> Any:
    """The decoder as the library parsed it, serialised without the vocabulary."""
    if tokenizer.decoder is None:
        return {"type": "Fuse"}
    bare = Tokenizer(BPE())
    bare.decoder = tokenizer.decoder
    return json.loads(bare.to_str())["decoder"]


def _growths(decoder: Any) -> Iterator[float]:
    """Factor by which each step of a decoder can lengthen a text."""
    kind = decoder["type"]
    if kind == "Sequence":
        for part in decoder["decoders"]:
            yield from _growths(part)
    elif kind == "Replace":
        content, pattern = len(decoder["content"]), decoder["pattern"].get("String")
        # A regular expression or an empty pattern may also match between any two characters.
        yield max(1.0, content / len(pattern)) if pattern else 1.0 + content
    elif kind not in _NEVER_GROW:
        raise ValueError(f"The tokenizer's decoder {kind!r} is not supported.")
