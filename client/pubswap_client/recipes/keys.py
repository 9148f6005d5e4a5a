"""The keys that a recipe can have, and what is said of one that it cannot."""

from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """The dotted keys of a settings class and of the tables within it; not tables."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        table = _table(field.annotation)
        keys += known_keys(table, key + ".") if table else [key]
    return keys


def unknown(key: str, known: list[str]) -> str:
    """What is said of a key that does not exist: which one was probably meant."""
    near = _nearest(key, known)
    return f"{key}: there is no such key" + (f"; is {near} meant?" if near else "")


def _nearest(key: str, known: list[str]) -> str | None:
    tables = {name[:at] for name in known for at, sign in enumerate(name) if sign == "."}
    if near := get_close_matches(key, [*known, *sorted(tables)], n=1, cutoff=0.75):
        return near[0]
    # Or it is right, or nearly, but in the wrong table.
    by_last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
    near = get_close_matches(key.rsplit(".", 1)[-1], by_last, n=1, cutoff=0.8)
    return by_last[near[0]] if near else None


def _table(annotation: Any) -> type[BaseModel] | None:
    for choice in (annotation, *get_args(annotation)):
        if isinstance(choice, type) and issubclass(choice, BaseModel):
            return choice
    return None
