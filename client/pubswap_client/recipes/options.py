"""KEY=VALUE: a recipe's values on a command line."""

import tomllib
from collections.abc import Iterable
from typing import Any

from pubswap_protocol.errors import InvalidSettings


def parse_set(options: Iterable[str]) -> dict[str, Any]:
    """Values by dotted key. Raises InvalidSettings for an option with no key or no value."""
    return {key: value_of(text) for key, text in map(key_and_text, options)}


def key_and_text(option: str) -> tuple[str, str]:
    """Both sides of the first `=`. Raises InvalidSettings if one is empty, or there is none."""
    key, _, text = option.partition("=")
    if not key.strip() or not text.strip():
        raise InvalidSettings(f"{option!r}: write KEY=VALUE, such as swap.period=4.")
    return key.strip(), text.strip()


def value_of(text: str) -> Any:
    """What TOML reads, and text where it is none: strings need no quotation marks."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
