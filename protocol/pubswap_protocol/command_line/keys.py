"""Dotted keys of settings, and suggestions for unknown ones."""

from collections.abc import Collection, Container, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import BaseModel

from pubswap_protocol.command_line.removed import removal
from pubswap_protocol.command_line.schema_text import tables
from pubswap_protocol.errors import InvalidSettings, fault_text
from pubswap_protocol.methods.registries import REGISTRIES
from pubswap_protocol.methods.registry import NAME


@cache
def dotted_keys(model: type[BaseModel]) -> tuple[str, ...]:
    """The dotted keys of a settings class and its nested tables, without the tables themselves."""
    return tuple(
        f"{table}.{name}".strip(".") for table, _, fields in tables(model) for name in fields
    )


def flat(tables: Mapping[str, Any], whole: Container[str] = (), prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to values by dotted key; a table in `whole` stays one value.

    The name of a named value has the setting's own key: `aggregation.rule`, beside
    `aggregation.rule.trim`.
    """
    values: dict[str, Any] = {}
    for name, value in tables.items():
        key = prefix + name
        if isinstance(value, Mapping) and key not in whole:
            values |= flat(value, whole, key + ".")
        else:
            setting = key.removesuffix(f".{NAME}")
            values[setting if setting in REGISTRIES else key] = value
    return values


def spelled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flat values by the keys of a TOML file, where a name beside parameters is `rule.name`."""
    return {
        f"{key}.{NAME}"
        if key in REGISTRIES and any(other.startswith(f"{key}.") for other in values)
        else key: value
        for key, value in values.items()
    }


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nest values by dotted key; raises InvalidSettings if a key is both a value and a table."""
    tables: dict[str, Any] = {}
    for key, value in spelled(values).items():
        target = tables
        *names, last = key.split(".")
        for name in names:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise InvalidSettings(f"{key}: {name} has the value {target!r}, not a table.")
        target[last] = value
    return tables


def within(key: str, table: str) -> bool:
    """Whether a key is in a table, or is the table's own."""
    return key == table or key.startswith(table + ".")


def without(values: Mapping[str, Any], table: str) -> dict[str, Any]:
    """The values without a key, and without any key that contains it or that it contains."""
    return {
        key: value
        for key, value in values.items()
        if not (within(key, table) or within(table, key))
    }


MAX_FAULTS = 20  # listed: an unknown key is compared with all keys, and nobody reads thousands


def fault_lines(faults: Sequence[Mapping[str, Any]], keys: Collection[str]) -> list[str]:
    """The first validation errors, each once (see `key_fault`), and the number of the others."""
    lines = list(dict.fromkeys(key_fault(fault, keys) for fault in faults[:MAX_FAULTS]))
    more = len(faults) - MAX_FAULTS
    return lines + ([f"There are {more:,} more faults."] if more > 0 else [])


def key_fault(fault: Mapping[str, Any], keys: Collection[str]) -> str:
    """A validation error as text; for an unknown key, with the key that was probably meant."""
    if fault["type"] != "extra_forbidden":
        return fault_text(fault)
    key, given = ".".join(map(str, fault["loc"])), fault.get("input")
    inner = flat(given, prefix=f"{key}.") if isinstance(given, Mapping) and not removal(key) else {}
    return "; ".join(unknown_key(each, keys) for each in inner or [key])


def unknown_key(key: str, keys: Collection[str]) -> str:
    """The message for an unknown key: why it was removed, or the key that was probably meant."""
    if gone := removal(key):
        return f"{key}: {gone}"
    within = {name[:at] for name in keys for at, sign in enumerate(name) if sign == "."}
    near = get_close_matches(key, [*keys, *sorted(within)], n=1, cutoff=0.75)
    if not near:
        # The name may be right, or nearly, but in the wrong table.
        by_last = {name.rsplit(".", 1)[-1]: name for name in reversed([*keys])}
        last = get_close_matches(key.rsplit(".", 1)[-1], by_last, n=1, cutoff=0.8)
        near = [by_last[name] for name in last]
    return f"{key}: there is no such key" + (f"; did you mean {near[0]}?" if near else "")
