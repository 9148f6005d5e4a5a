"""A sweep's values as they are written on a command line."""

import re
from collections.abc import Iterable

from pubswap_client.recipes.options import key_and_text, value_of
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.results import Value


def parse_given(texts: Iterable[str]) -> dict[str, Value]:
    """KEY=VALUE, each key once. Raises InvalidSettings."""
    return {key: _plain(text) for key, text in map(key_and_text, texts)}


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[Value, ...]]:
    """KEY=VALUE,VALUE,... Raises InvalidSettings."""
    return {key: tuple(map(_plain, text.split(","))) for key, text in map(key_and_text, texts)}


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


def _plain(text: str) -> Value:
    """A number, a truth value or text: what an axis of a result can be."""
    value = value_of(text.strip())
    return value if isinstance(value, bool | int | float | str) else text.strip()
