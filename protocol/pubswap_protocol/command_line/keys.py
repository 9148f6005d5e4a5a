"""The dotted keys of settings, and which one was meant by what is none."""

from collections.abc import Collection, Container, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import BaseModel

from pubswap_protocol.command_line.schema_text import tables


@cache
def known_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """The dotted keys of a settings class and of the tables within it; not tables."""
    return tuple(
        f"{table}.{name}".strip(".") for table, _, fields in tables(model) for name in fields
    )


def flat(tables: Mapping[str, Any], whole: Container[str] = (), prefix: str = "") -> dict[str, Any]:
    """Tables in tables as values by dotted key; those of the keys `whole` are one value."""
    values: dict[str, Any] = {}
    for name, value in tables.items():
        key = prefix + name
        if isinstance(value, Mapping) and key not in whole:
            values |= flat(value, whole, key + ".")
        else:
            values[key] = value
    return values


def unknown_key(key: str, known: Collection[str]) -> str:
    """A key that does not exist, and which one was probably meant."""
    within = {name[:at] for name in known for at, sign in enumerate(name) if sign == "."}
    near = get_close_matches(key, [*known, *sorted(within)], n=1, cutoff=0.75)
    if not near:
        # Or it is right, or nearly, but in the wrong table.
        by_last = {name.rsplit(".", 1)[-1]: name for name in reversed([*known])}
        last = get_close_matches(key.rsplit(".", 1)[-1], by_last, n=1, cutoff=0.8)
        near = [by_last[name] for name in last]
    return f"{key}: there is no such key" + (f"; is {near[0]} meant?" if near else "")
