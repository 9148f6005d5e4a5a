"""A recipe resolved: every value by dotted key, and where it comes from; and as TOML."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pubswap_client.recipes.layers import flat
from pubswap_client.recipes.recipe import Reading, Recipe

DEFAULT = "default"
_GRID = "sweep.grid"
_FOLLOWS = {"name": "the file's name", "data.prepare.clients": "clients"}


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
        if key in layers:
            origin = layers[key].origin
        elif key == "rounds" and recipe.total_steps is not None:
            origin = "total_steps"
        else:
            origin = _FOLLOWS.get(key, DEFAULT)
        found.append(Entry(key, value, origin))
    return found


def toml_text(reading: Reading, recipe: Recipe) -> str:
    """One TOML file with every value, which extends nothing and is the same recipe."""
    lines = []
    for key, value, _ in entries(reading, recipe):
        if key == "rounds" and recipe.total_steps is not None:
            continue
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
