"""The weight files of a base model in a Hugging Face folder: which they are, and their headers.

Limits on members' files do not apply here: a base model may have any dtype, five dimensions, empty
tensors, and as many tensors as its header can name.
"""

import json
from pathlib import Path
from typing import Any

from pubswap_protocol.errors import InvalidSettings

Shapes = dict[str, tuple[int, ...]]
_MAX_HEADER_BYTES = 100_000_000  # the safetensors library's own limit


def weight_files(folder: Path) -> list[Path]:
    """The weight files that transformers loads; raises InvalidSettings if one is missing.

    Ignores other files, such as Mistral's consolidated.safetensors, which holds the same weights
    under names that match no module.
    """
    names, index = {"model.safetensors"}, folder / "model.safetensors.index.json"
    if index.exists() and not (folder / "model.safetensors").exists():
        parts = json_object(index, index.read_bytes()).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(n, str) for n in parts.values()):
            raise InvalidSettings(f"{index} is not an index: its weight_map names no files.")
        names = set(parts.values())
    if missing := sorted(name for name in names if not (folder / name).exists()):
        raise InvalidSettings(f"{folder} has no {missing[0]}, a file of the model's weights.")
    return sorted(folder / name for name in names)


def weight_shapes(files: list[Path]) -> Shapes:
    """The shape of each tensor, by its name in the files.

    Raises InvalidSettings if a file is incomplete or is no safetensors file.
    """
    shapes: Shapes = {}
    for path in files:
        shapes |= _shapes(path)
    return shapes


def _shapes(path: Path) -> Shapes:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    if size < 8 or len(header) < length:
        raise _incomplete(path, f"it ends within its header, after {size} bytes")
    entries = json_object(path, header)
    entries.pop("__metadata__", None)
    try:
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in entries.items()}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidSettings(
            f"{path} is not a safetensors file: {error!r} in its header."
        ) from None
    if size < 8 + length + end:
        raise _incomplete(path, f"it has {size} bytes, and its header says {8 + length + end}")
    return shapes


def _incomplete(path: Path, reason: str) -> InvalidSettings:
    return InvalidSettings(
        f"{path} is incomplete: {reason}. Download it again; git needs git-lfs for it."
    )


def json_object(path: Path, data: bytes) -> dict[str, Any]:
    """The JSON object in a model's file; raises InvalidSettings."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{path} is damaged: {error}. Download it again.") from None
    if not isinstance(parsed, dict):
        raise InvalidSettings(f"{path} is damaged: it is not a JSON object. Download it again.")
    return parsed
