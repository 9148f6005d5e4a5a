"""A recipe, which is a run file: which model, which sets, and what differs from the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from pubswap_client.recipes.layers import (
    EXTENDS,
    Layer,
    Merged,
    find_recipe,
    given,
    located,
    merge,
    read_layers,
)
from pubswap_client.recipes.sources import ModelSource, RecipeData
from pubswap_client.recipes.sweep import MEMBERS, Sweep
from pubswap_protocol.bounds import Name, Positive
from pubswap_protocol.errors import InvalidSettings, fault_text
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.verifiers import check_verifier


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


if TYPE_CHECKING:
    pass

_NOT_SWEPT = {
    "seed": "seeds are listed in sweep.seeds",
    "rounds": "rounds follow from total_steps and local_steps, which can be axes",
    "name": "a recipe has one name",
    "about": "it changes nothing",
    "sweep.seeds": "seeds are no axis",
    "sweep.grid": "a grid holds no other",
}


def contradictions(recipe: Recipe) -> Iterator[str]:
    """Each thing that is wrong, beginning with its key."""
    yield from _schedule(recipe)
    try:
        check_verifier(recipe.verifier)
    except InvalidSettings as error:
        yield f"verifier: {error.detail}"
    yield from _data(recipe)
    yield from _axes(recipe)


def set_sizes(recipe: Recipe, public: int | None, private: dict[str, int]) -> Iterator[str]:
    """What is wrong with sets of so many problems; `private` is by what the set is called."""
    b = recipe.grpo.prompts_per_step
    if recipe.method == "pubswap" and public is not None and public < b:
        yield f"the public set holds {public} problems, but a step takes {b}"
    for name, size in private.items():
        if size < b:
            yield f"{name} holds {size} problems, but a step takes {b}"


def _schedule(recipe: Recipe) -> Iterator[str]:
    # The paper's period is shorter than a round (section 3.4). One as long would be possible, but
    # leaves one public step just before the mean, which is no coordination of local training.
    if recipe.method == "pubswap" and recipe.swap.period >= recipe.local_steps:
        yield (
            f"swap.period: {recipe.swap.period} is not below local_steps = {recipe.local_steps}, "
            "as the paper has it; use a shorter period, or method = 'fedavg' for no public steps"
        )


def _data(recipe: Recipe) -> Iterator[str]:
    spec, clients = recipe.data.prepare, recipe.clients
    if recipe.data.private and len(recipe.data.private) != clients:
        yield f"data.private: {len(recipe.data.private)} files for clients = {clients}"
    if spec is None:
        return
    if spec.clients != clients:
        yield f"data.prepare.clients: {spec.clients}, but clients = {clients}; leave it out"
    if spec.sizes_known:
        sizes = spec.sizes()
        for fault in set_sizes(recipe, sizes.public, {"each private set": sizes.private}):
            yield f"data.prepare: {fault}"


def _axes(recipe: Recipe) -> Iterator[str]:
    known = known_keys(type(recipe))
    axes = dict.fromkeys(axis for table in recipe.sweep.grid for axis in table)
    for axis in axes:
        if axis in _NOT_SWEPT:
            yield f"sweep.grid: {axis}: {_NOT_SWEPT[axis]}"
        elif axis not in (*known, MEMBERS):
            yield f"sweep.grid: {unknown(axis, [*known, MEMBERS])}"


ELSE = "else"


def with_rounds(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's nested values, with `total_steps` as one number and `rounds` following from it.

    Raises ValueError, beginning with the key, where that cannot be. Values of a wrong type stay
    as they are.
    """
    total = values.get("total_steps")
    if total is None:
        return dict(values)
    if "rounds" in values:
        raise ValueError("rounds: it follows from total_steps; give one of the two")
    tau = values.get("local_steps", RunSettings.model_fields["local_steps"].default)
    if isinstance(total, Mapping):
        total = _chosen(total, tau)
    if not _count(total) or not _count(tau):
        return {**values, "total_steps": total}
    if total % tau:
        below = total // tau * tau
        near = f"{below} or {below + tau}" if below else f"{tau}"
        raise ValueError(
            f"total_steps: {total} is no multiple of local_steps = {tau}, and a run ends with a "
            f"round; use {near}"
        )
    return {**values, "total_steps": total, "rounds": total // tau}


def _chosen(table: Mapping[str, Any], tau: Any) -> Any:
    wrong = [key for key in table if key != ELSE and not key.isdecimal()]
    if wrong:
        raise ValueError(
            f"total_steps.{wrong[0]}: the keys are numbers of local_steps, or {ELSE!r}"
        )
    if str(tau) not in table and ELSE not in table:
        raise ValueError(f"total_steps: the table has no value for local_steps = {tau}, nor `else`")
    return table.get(str(tau), table.get(ELSE))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class Recipe(RunSettings):
    """The whole file: what a run is, and in `[sweep]` what is varied."""

    name: Name = Field(description="The run's name; by default the file's.")
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

    def varied(self, values: Mapping[str, Any]) -> Reading:
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
