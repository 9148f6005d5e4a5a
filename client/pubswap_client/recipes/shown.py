"""A recipe's values, as a table for people and as one TOML file."""

from collections.abc import Iterator
from typing import Any

from pubswap_client.recipes.recipe import Reading
from pubswap_protocol.command_line.keys import flat, spelled
from pubswap_protocol.command_line.toml_values import value_text

DEFAULT = "default"
# Values that are derived from another one unless they are given.
_FOLLOWS = {"rounds": "total_steps", "data.prepare.clients": "clients", "data.prepare.seed": "seed"}


def values_and_notes(reading: Reading) -> Iterator[tuple[str, Any, str]]:
    """All values except the sweep's grid, by dotted key, in the order of the settings.

    The note is "" for a given value, "default", or the key that the value is derived from.
    """
    recipe = reading.sound()
    recipe_fields = {"name", "about", "model", "total_steps", "sweep"}
    values = recipe.run_settings.model_dump(mode="json")
    values |= recipe.model_dump(
        exclude_none=True, include=recipe_fields, exclude={"sweep": {"grid"}}
    )
    # A split's settings depend on its source; settings of other sources would be refused.
    values["data"] = recipe.data.model_dump(by_alias=True, exclude_unset=True)
    if recipe.data.prepare is not None:
        spec = recipe.data.prepare
        values["data"]["prepare"] |= {"alpha": spec.alpha, "seed": spec.seed}
    follows = _FOLLOWS if recipe.total_steps is not None else {**_FOLLOWS, "rounds": DEFAULT}
    for key, value in flat(values).items():
        if value is not None:
            yield key, value, "" if key in reading.values else follows.get(key, DEFAULT)


def toml_text(reading: Reading) -> str:
    """The same recipe as one TOML file with every value, which extends nothing."""
    given = {
        # Keep a table as it is, because the sweep's other values of local_steps need it.
        key: reading.values.get(key, value) if key == "total_steps" else value
        for key, value, note in values_and_notes(reading)
        if note in ("", DEFAULT)  # the others will be derived again
    }
    lines = [f"{key} = {value_text(value)}" for key, value in spelled(given).items()]
    for table in reading.sound().sweep.grid:
        lines += ["", "[[sweep.grid]]"]
        lines += [f"{axis} = {value_text(values)}" for axis, values in spelled(table).items()]
    return "\n".join(lines) + "\n"
