"""A recipe, which is a run file: which model, which sets, and what differs from the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from pubswap_client.recipes.consistency import contradictions
from pubswap_client.recipes.keys import known_keys, unknown
from pubswap_client.recipes.layers import EXTENDS, Layer, Merged, given, merge, read_layers
from pubswap_client.recipes.located import located
from pubswap_client.recipes.shipped import find_recipe
from pubswap_client.recipes.sources import ModelSource, RecipeData
from pubswap_client.recipes.steps import with_rounds
from pubswap_client.recipes.sweep import Sweep
from pubswap_protocol.bounds import Positive
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.explaining import fault_text
from pubswap_protocol.messages import Name
from pubswap_protocol.settings import RunSettings


class Recipe(RunSettings):
    """The whole file: what a run is, and in `[sweep]` what is varied."""

    name: Name
    about: str = Field(default="", description="One line for `pubswap recipe list`.")
    model: ModelSource
    data: RecipeData
    total_steps: Positive | None = Field(
        default=None,
        description="GRPO steps in all, from which `rounds` follows. In the file it may be a table "
        "by local_steps, with `else` for those that it does not name.",
    )
    sweep: Sweep = Sweep()

    @property
    def run_settings(self) -> RunSettings:
        """The part of the recipe that every member sees."""
        return RunSettings(**{name: getattr(self, name) for name in RunSettings.model_fields})


@dataclass(frozen=True)
class Reading:
    """What a recipe's layers come to, and what is wrong with it.

    With faults `recipe` is what else could be read, or None; it is only to look for more of them.
    """

    path: Path
    layers: list[Layer]
    merged: Merged
    recipe: Recipe | None
    faults: list[str]

    def varied(self, values: Mapping[str, Any]) -> "Reading":
        """The same recipe with other values by dotted key."""
        return _read(self.path, [*self.layers, given(values)])

    def sound(self) -> Recipe:
        """The recipe; raises InvalidSettings with the key that is wrong."""
        if self.recipe is not None and not self.faults:
            return self.recipe
        first, *others = self.faults
        more = f" ({len(others)} more: see `pubswap recipe check`)" if others else ""
        raise InvalidSettings(f"{self.path}: {first}{more}")


def load_recipe(source: Path | str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from its path or, if it is a shipped one, by its name.

    `overrides` maps dotted keys to values; relative paths among them are relative to the working
    folder, those in a file to that file's. Raises InvalidSettings with the key that is wrong.
    """
    return read_recipe(source, overrides).sound()


def read_recipe(source: Path | str, overrides: Mapping[str, Any] | None = None) -> Reading:
    """As `load_recipe`, with all that is wrong; raises InvalidSettings for no file, or no TOML."""
    path = find_recipe(source)
    layers = read_layers(path)
    return _read(path, [*layers, given(overrides)] if overrides else layers)


def _read(path: Path, layers: list[Layer]) -> Reading:
    merged = located(merge(layers))
    values: dict[str, Any] = {"name": path.stem, **merged.nested()}
    _tell_split(values)
    faults = []
    try:
        values = with_rounds(values)
    except ValueError as error:
        faults.append(str(error))
        del values["total_steps"]
    recipe, found = _validated(values)
    faults += found
    if recipe is not None:
        faults += contradictions(recipe)
    return Reading(path, layers, merged, recipe, faults)


def _tell_split(values: dict[str, Any]) -> None:
    """A split has the run's number of clients and its seed, unless it says otherwise itself.

    So the seeds of a sweep differ in who holds which problems too, and not in the training alone.
    """
    data = values.get("data")
    if isinstance(data, dict) and isinstance(data.get("prepare"), dict):
        for name in ("clients", "seed"):
            run = values.get(name, RunSettings.model_fields[name].default)
            data["prepare"].setdefault(name, run)


def _validated(values: dict[str, Any]) -> tuple[Recipe | None, list[str]]:
    """The recipe, and what is wrong; then it is one without those values, if that can be."""
    try:
        return Recipe(**values), []
    except ValidationError as error:
        found = error.errors()
    known = [EXTENDS, *known_keys(Recipe)]
    faults = list(dict.fromkeys(_text(detail, known) for detail in found))
    for detail in found:
        _drop(values, [part for part in detail["loc"] if isinstance(part, str)])
    try:
        return Recipe(**values), faults
    except ValidationError:
        return None, faults


def _text(detail: ErrorDetails, known: list[str]) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return unknown(key, known)
    return fault_text(detail)


def _drop(values: dict[str, Any], path: list[str]) -> None:
    """Take out the value at this path, or at the part of it that there is."""
    for name in path[:-1]:
        if not isinstance(values.get(name), dict):
            path = path[: path.index(name) + 1]
            break
        values = values[name]
    if path:
        values.pop(path[-1], None)
