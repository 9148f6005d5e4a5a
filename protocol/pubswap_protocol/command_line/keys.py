"""The keys of settings, and which one was meant by what is none."""

from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel


def known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """The dotted keys of a settings class and of the tables within it; not tables."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        choices = (field.annotation, *get_args(field.annotation))
        tables = [c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)]
        keys += known_keys(tables[0], key + ".") if tables else [key]
    return keys


def unknown_key(key: str, known: list[str]) -> str:
    """A key that does not exist, and which one was probably meant."""
    tables = {name[:at] for name in known for at, sign in enumerate(name) if sign == "."}
    near = get_close_matches(key, [*known, *sorted(tables)], n=1, cutoff=0.75)
    if not near:
        # Or it is right, or nearly, but in the wrong table.
        by_last = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
        last = get_close_matches(key.rsplit(".", 1)[-1], by_last, n=1, cutoff=0.8)
        near = [by_last[name] for name in last]
    return f"{key}: there is no such key" + (f"; is {near[0]} meant?" if near else "")
