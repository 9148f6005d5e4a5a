"""`--set KEY=VALUE`: a recipe's values on a command line."""

import tomllib
from collections.abc import Iterable
from typing import Any

from pubswap_protocol.errors import InvalidSettings


def parse_set(options: Iterable[str]) -> dict[str, Any]:
    """Values by dotted key; a value is TOML, and text where it is none: `swap.strategy=random`.

    Raises InvalidSettings for an option with no `=`.
    """
    values = {}
    for option in options:
        key, sign, text = option.partition("=")
        if not sign or not key.strip():
            raise InvalidSettings(f"--set {option!r}: write KEY=VALUE, such as swap.period=4.")
        values[key.strip()] = _value(text.strip())
    return values


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
