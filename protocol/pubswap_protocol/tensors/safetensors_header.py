"""A strict reader of safetensors headers.

The safetensors library is memory-safe, but it accepts duplicate keys, free-text metadata, and
headers of 100 MB. A file from outside is checked here before its data is read.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pubswap_protocol.bounds import unique_keys
from pubswap_protocol.errors import InvalidAdapter

MAX_HEADER_BYTES = 1 << 20
MAX_TENSORS = 4096
MAX_DIMENSIONS = 4
DTYPE_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1},
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor's place in a file: dtype, shape, and byte offsets after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def packed(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> dict[str, TensorSpec]:
    """Lay out tensors, given by name, dtype and shape, one after another."""
    specs, position = {}, 0
    for name, dtype, shape in tensors:
        end = position + DTYPE_BYTES[dtype] * math.prod(shape)
        specs[name] = TensorSpec(dtype, shape, position, end)
        position = end
    return specs


def data_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """The number of bytes after a file's header."""
    return max((spec.end for spec in specs.values()), default=0)


def header_bytes(specs: Mapping[str, TensorSpec]) -> bytes:
    """A canonical file's first bytes: the length and the header, padded to 8 bytes."""
    entries = {
        name: {"dtype": s.dtype, "shape": list(s.shape), "data_offsets": [s.begin, s.end]}
        for name, s in specs.items()
    }
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def header_length(prefix: bytes) -> int:
    """The header's length in bytes, from the file's first 8 bytes."""
    if len(prefix) < 8:
        raise InvalidAdapter("The file is shorter than a safetensors header.")
    length = int.from_bytes(prefix[:8], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise InvalidAdapter(f"The header's length {length} is not in 2..{MAX_HEADER_BYTES}.")
    return length


def read_header(data: bytes | memoryview) -> tuple[dict[str, TensorSpec], int]:
    """The tensors of a whole safetensors file, and the offset of its data.

    Raises InvalidAdapter unless the header is plain: at most 1 MiB and 4,096 tensors, no duplicate
    keys, no metadata, known dtypes, no holes or overlaps, and exactly as many bytes as it says.
    """
    length = header_length(bytes(data[:8]))
    specs = parse_header(bytes(data[8 : 8 + length]))
    expected = 8 + length + data_bytes(specs)
    if len(data) != expected:
        raise InvalidAdapter(f"The file has {len(data)} bytes, but its header says {expected}.")
    return specs, 8 + length


def header_of_file(path: Path) -> tuple[dict[str, TensorSpec], int]:
    """The tensors of a file, and the offset of its data; raises InvalidAdapter."""
    with path.open("rb") as file:
        length = header_length(file.read(8))
        return parse_header(file.read(length)), 8 + length


def parse_header(raw: bytes) -> dict[str, TensorSpec]:
    """The tensors of a header, in the order of their offsets; raises InvalidAdapter."""
    if not (raw.startswith(b"{") and raw.rstrip(b" ").endswith(b"}")):
        raise InvalidAdapter("The header does not begin with { and end with } and spaces.")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique_keys, parse_int=_natural)
    except (ValueError, RecursionError) as error:
        raise InvalidAdapter(f"The header is not plain JSON: {error}") from None
    if not isinstance(header, dict):
        raise InvalidAdapter("The header is not a JSON object.")
    # Exactly {}: the library refuses other empty values, so such a file is not valid.
    if header.pop("__metadata__", {}) != {}:
        raise InvalidAdapter("The header carries metadata; save the tensors without any.")
    if not 1 <= len(header) <= MAX_TENSORS:
        raise InvalidAdapter(f"The file has {len(header)} tensors; 1 to {MAX_TENSORS} are allowed.")
    specs = {name: _spec(name, entry) for name, entry in header.items()}
    ordered = dict(sorted(specs.items(), key=lambda item: (item[1].begin, item[1].end)))
    position = 0
    for name, spec in ordered.items():
        if spec.begin != position:
            raise InvalidAdapter(f"Tensor {name!r} does not begin where the one before it ends.")
        position = spec.end
    return ordered


def _natural(text: str) -> int:
    # Python would accept -0 as a size, but a size has no sign.
    return -1 if text.startswith("-") else int(text)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


def _spec(name: str, entry: object) -> TensorSpec:
    # JSON escapes can encode half a surrogate pair, which UTF-8 cannot.
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise InvalidAdapter(f"The name {name!r} is not Unicode text.")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InvalidAdapter(f"Tensor {name!r} must have dtype, shape and data_offsets only.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise InvalidAdapter(f"Tensor {name!r} has the dtype {dtype!r}.")
    lists = isinstance(shape, list) and isinstance(offsets, list)
    if not lists or len(offsets) != 2 or len(shape) > MAX_DIMENSIONS:
        raise InvalidAdapter(f"Tensor {name!r} has no usable shape or offsets.")
    if not all(is_count(n) for n in [*shape, *offsets]):
        raise InvalidAdapter(f"Tensor {name!r} has no usable shape or offsets.")
    if offsets[1] - offsets[0] != math.prod(shape) * DTYPE_BYTES[dtype] or not math.prod(shape):
        raise InvalidAdapter(f"Tensor {name!r} has offsets that do not fit its shape and dtype.")
    return TensorSpec(dtype, tuple(shape), offsets[0], offsets[1])
