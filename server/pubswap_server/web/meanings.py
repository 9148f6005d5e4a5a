"""What a run's settings mean: their descriptions, as in the reference."""

from collections.abc import Mapping
from functools import cache
from re import split
from typing import Any

from pubswap_protocol.command_line.schema_text import plain, tables
from pubswap_protocol.settings import RunSettings


@cache
def _descriptions() -> list[tuple[str, str, str]]:
    """Table, dotted key and description; two values of a setting may have the same parameter."""
    found = []
    for table, whole, fields in tables(RunSettings):
        for name, field in fields.items():
            found.append((table, f"{table}.{name}".strip("."), field.get("description", "")))
        found.append((table, table, whole))  # of a table that a run may leave out
    return found


def meanings(values: Mapping[str, Any]) -> dict[str, str]:
    """By dotted key; of parameters with the same key, that of the value which the run has."""
    found: dict[str, str] = {}
    for table, key, text in _descriptions():
        if key not in found or f"With `{values.get(table)}`." in text:
            found[key] = plain(text)
    return found


def meanings_of_chosen(values: Mapping[str, Any]) -> dict[str, str]:
    """As `meanings`, but of a choice such as the verifier only what the chosen one is."""
    return {key: _chosen(text, values.get(key)) for key, text in meanings(values).items()}


def _chosen(text: str, value: object) -> str:
    head, *choices = split(r" (?=`[\w-]+`: )", text)
    own = [choice for choice in choices if choice.startswith(f"`{value}`: ")]
    return " ".join([head, *own]) if own else text
