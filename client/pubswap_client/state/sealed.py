"""A sealed file: tensors and facts in one safetensors file whose digest covers every byte.

The facts are JSON in the file's metadata. Beside them stands the SHA-256 of the whole file with
64 zeros instead of the digest, so that a file that is torn, rotten or edited is never used.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

Tensors = Mapping[str, NDArray[Any]]
Facts = Mapping[str, Any]

_ZEROS = b"0" * 64
# A quotation mark inside the facts is escaped there, so that this matches the metadata's own key.
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')


class BrokenSeal(ValueError):
    """The bytes are not those of any sealed file."""


def seal(facts: Facts, tensors: Tensors) -> bytes:
    """The file of `tensors` (any shapes and dtypes that numpy has) and `facts` (JSON)."""
    ordered = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    data: bytes = save(ordered, {"facts": json.dumps(facts), "sha256": _ZEROS.decode()})
    start = _start(data)
    return b"".join([data[:start], _digest(data, start), data[start + 64 :]])


def unseal(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The facts and the tensors of a file; raises BrokenSeal if it is not as it was written."""
    start = _start(data)
    if data[start : start + 64] != _digest(data, start):
        raise BrokenSeal("its digest is another one")
    try:
        facts = json.loads(json.loads(data[8 : _header_end(data)])["__metadata__"]["facts"])
        return facts, load(data)
    except (ValueError, LookupError, SafetensorError) as error:
        raise BrokenSeal(f"it cannot be read: {error}") from None


def _start(data: bytes) -> int:
    """The digest's first byte."""
    match = _DIGEST.search(data, 8, _header_end(data))
    if match is None:
        raise BrokenSeal("it has no digest")
    return match.start(1)


def _header_end(data: bytes) -> int:
    return min(len(data), 8 + int.from_bytes(data[:8], "little"))


def _digest(data: bytes, start: int) -> bytes:
    view = memoryview(data)
    digest = hashlib.sha256(view[:start])
    digest.update(_ZEROS)
    digest.update(view[start + 64 :])
    return digest.hexdigest().encode()
