"""A recipe resolved: every value by dotted key, and where it comes from; and as TOML."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pubswap_client.recipes.layers import flat
from pubswap_client.recipes.recipe import Reading, Recipe

DEFAULT = "default"
_GRID = "sweep.grid"

# What follows from another value where no file says it.
_FOLLOWS = {
    "rounds": "total_steps",
    "data.prepare.clients": "clients",
    "data.prepare.seed": "seed",
}


class Entry(NamedTuple):
    """One value of a resolved recipe."""

    key: str
    value: Any
    origin: str


def entries(reading: Reading, recipe: Recipe) -> list[Entry]:
    """All values but the sweep's grid, in the order of the settings; what is unset is left out."""
    layers = reading.merged.layers
    values = recipe.model_dump(exclude_none=True, exclude={"data": True, "sweep": {"grid"}})
    # A split's settings depend on its source; those of the others would be refused.
    values["data"] = recipe.data.model_dump(by_alias=True, exclude_unset=True)
    if recipe.data.prepare is not None:
        spec = recipe.data.prepare
        values["data"]["prepare"] |= {"alpha": spec.alpha, "seed": spec.seed}
    found = []
    for key, value in flat(values).items():
        found.append(
            Entry(key, value, layers[key].origin if key in layers else _other(key, recipe))
        )
    return found


def _other(key: str, recipe: Recipe) -> str:
    if key == "name":
        return "the file's name"
    if key == "rounds" and recipe.total_steps is None:
        return DEFAULT
    return _FOLLOWS.get(key, DEFAULT)


def toml_text(reading: Reading, recipe: Recipe) -> str:
    """One TOML file with every value, which extends nothing and is the same recipe."""
    lines = []
    for key, value, origin in entries(reading, recipe):
        if origin == _FOLLOWS.get(key):
            continue  # it goes on following
        # The table, if there is one: the sweep's other values of local_steps need it.
        value = reading.merged.values.get(key, value) if key == "total_steps" else value
        lines.append(f"{key} = {value_text(value)}")
    for table in recipe.sweep.grid:
        lines += ["", f"[[{_GRID}]]"]
        lines += [f"{axis} = {value_text(values)}" for axis, values in table.items()]
    return "\n".join(lines) + "\n"


def value_text(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        pairs = (f"{_name(str(key))} = {value_text(item)}" for key, item in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _name(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else f'"{key}"'
