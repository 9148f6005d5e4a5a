"""Values as they are written on a command line."""

import re
import tomllib
from collections.abc import Iterable

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.results import Value


def parse_given(texts: Iterable[str]) -> dict[str, Value]:
    """key=value, each key once. Raises InvalidSettings."""
    return {key: _value(text) for key, text in map(_parted, texts)}


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[Value, ...]]:
    """key=value,value,... Raises InvalidSettings."""
    return {key: tuple(map(_value, text.split(","))) for key, text in map(_parted, texts)}


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """0-4, or 0,3,7, or both; nothing for None. Raises InvalidSettings."""
    seeds: list[int] = []
    for part in text.split(",") if text is not None else ():
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if found is None:
            raise InvalidSettings(f"--seeds {text}: give them as 0-4, or 0,3,7.")
        first = int(found[1])
        seeds += range(first, int(found[2] or first) + 1)
    return tuple(dict.fromkeys(seeds))


def _parted(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip() or not value.strip():
        raise InvalidSettings(f"{text!r} is not of the form key=value.")
    return key.strip(), value.strip()


def _value(text: str) -> Value:
    """What TOML reads, or else the text itself, so that strings need no quotation marks."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
    return value if isinstance(value, bool | int | float | str) else text.strip()
