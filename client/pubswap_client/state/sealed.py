"""A sealed file: tensors and facts in one safetensors file that ends with its own digest.

The facts are JSON in a tensor `facts`. The last tensor, `digest`, holds the BLAKE3 digest of all
bytes before it, so a truncated, corrupted or edited file is never used.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from pubswap_protocol.digests import Digester, digest_of
from pubswap_protocol.tensors.safetensors_header import header_bytes, packed

Tensors = Mapping[str, NDArray[Any]]
Facts = Mapping[str, Any]

_FACTS, _DIGEST = "facts", "digest"
_DIGEST_BYTES = len(digest_of(b""))


class BrokenSeal(ValueError):
    """The bytes are not a valid sealed file."""


def seal(facts: Facts, tensors: Tensors) -> list[memoryview]:
    """Encode `tensors` (any numpy shapes and dtypes) and `facts` (JSON) as a file, in pieces.

    The pieces are views of the tensors: only a tensor that is not contiguous is copied.
    """
    whole = {**tensors, _FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8)}
    kinds = [
        (name, f"{array.dtype.kind.upper()}{8 * array.dtype.itemsize}", array.shape)
        for name, array in whole.items()
    ]
    specs = packed([*kinds, (_DIGEST, "U8", (_DIGEST_BYTES,))])
    pieces = [memoryview(header_bytes(specs))]
    pieces += [np.ravel(array).view(np.uint8).data for array in whole.values()]
    digester = Digester()
    for piece in pieces:
        digester.update(piece)
    return [*pieces, memoryview(digester.digest().encode())]


def unseal(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The facts and the tensors of a file. Raises BrokenSeal if it changed since it was written."""
    sealed = memoryview(data)
    if sealed[-_DIGEST_BYTES:] != digest_of(sealed[:-_DIGEST_BYTES]).encode():
        raise BrokenSeal("its digest does not match")
    try:
        tensors = load(data)
        del tensors[_DIGEST]
        return json.loads(tensors.pop(_FACTS).tobytes()), tensors
    except (ValueError, LookupError, SafetensorError) as error:
        raise BrokenSeal(f"it cannot be read: {error}") from None
