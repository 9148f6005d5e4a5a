"""From token ids to text and back, with the `tokenizers` package alone."""

from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import Tokenizer


def load_tokenizer(data: bytes) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`; raises ValueError if it is not one."""
    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"This is not a tokenizer.json: {error}") from None


def decode(tokenizer: Tokenizer, tokens: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> str:
    """The text of a response (T,), without special tokens: what a verifier reads."""
    return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=True))


def decode_all(
    tokenizer: Tokenizer, responses: Iterable["np.ndarray[tuple[int], np.dtype[np.int32]]"]
) -> list[str]:
    """The texts of many responses, in order."""
    batch: Sequence[list[int]] = [tokens.tolist() for tokens in responses]
    return [str(text) for text in tokenizer.decode_batch(batch, skip_special_tokens=True)]
