"""Values of settings in TOML syntax."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def value_text(value: Any) -> str:
    """A value in one line; None, which TOML lacks, as `not set`."""
    if value is None:
        return "not set"
    if isinstance(value, Mapping):
        pairs = (f"{_name(str(key))} = {value_text(item)}" for key, item in value.items())
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, str | Path):
        return "".join(map(_character, json.dumps(str(value), ensure_ascii=False)))
    return json.dumps(value)


def _name(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else f'"{key}"'


def _character(character: str) -> str:
    """Escape, as TOML does, a character that a terminal would interpret."""
    return character if character.isprintable() else f"\\U{ord(character):08x}"
