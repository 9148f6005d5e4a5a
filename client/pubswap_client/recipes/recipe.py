"""A recipe, or run file: the model, the problem sets, and what differs from the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pubswap_client.recipes.inheritance import EXTENDS, changed, read_values
from pubswap_client.recipes.tables import MEMBERS, ModelSource, RecipeData, Sweep
from pubswap_protocol.bounds import Name, Positive
from pubswap_protocol.command_line.keys import (
    dotted_keys,
    fault_lines,
    nested,
    unknown_key,
    without,
)
from pubswap_protocol.errors import InvalidProblems, InvalidSettings, first_fault
from pubswap_protocol.problems import read_jsonl
from pubswap_protocol.prompts import Shot
from pubswap_protocol.settings import RunSettings

ELSE = "else"

_NOT_SWEPT = {
    "seed": "seeds are listed in sweep.seeds",
    "rounds": "rounds follow from total_steps and local_steps, which can be axes",
    "name": "a recipe has one name",
    "about": "it changes nothing",
    "sweep.seeds": "seeds cannot be an axis",
    "sweep.grid": "a grid cannot contain another",
}


class Recipe(RunSettings):
    """The whole file: the definition of a run, and in `[sweep]` the settings to vary."""

    name: Name = Field(description="Name of the run; by default the file's.")
    about: str = Field(default="", description="One line for `pubswap recipe list`.")
    model: ModelSource
    data: RecipeData
    total_steps: Positive | None = Field(
        default=None,
        description="GRPO steps in total; `rounds` follows from it. In the file it may be a table "
        "by local_steps, with `else` for all other values.",
    )
    sweep: Sweep = Sweep()

    @property
    def run_settings(self) -> RunSettings:
        """The part of the recipe that every member sees."""
        return RunSettings(**{name: getattr(self, name) for name in RunSettings.model_fields})


@dataclass(frozen=True)
class Reading:
    """A recipe's values, and all their faults.

    With faults, `recipe` is what else could be read, or None; it only serves to find more faults.
    """

    path: Path
    values: dict[str, Any]  # by dotted key; only values that a file or an option gives
    recipe: Recipe | None
    faults: list[str]

    def varied(self, values: Mapping[str, Any]) -> Reading:
        """The same recipe with other values; paths are relative to the working folder."""
        return _checked(self.path, changed(self.values, values))

    def sound(self) -> Recipe:
        """The recipe; raises InvalidSettings, naming the wrong key."""
        if self.recipe is not None and not self.faults:
            return self.recipe
        first, *others = self.faults
        more = f" ({len(others)} more: see `pubswap recipe check`)" if others else ""
        raise InvalidSettings(f"{self.path}: {first}{more}")


def load_recipe(source: Path | str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from its path or, if it is a shipped one, by its name.

    `overrides` maps dotted keys to values. Paths in it are relative to the working folder, paths in
    a file to the file's folder. Raises InvalidSettings, naming the wrong key.
    """
    return read_recipe(source, overrides).sound()


def verifier_settings(source: Path | str) -> RunSettings:
    """`verifier` and `correct_at` of a recipe, or of a file that is not yet one.

    All else is the default. Raises InvalidSettings, naming the wrong key.
    """
    path, given = read_values(source, {})
    named = ("verifier", "correct_at")
    values = {key: value for key, value in given.items() if key.partition(".")[0] in named}
    if not values:
        raise InvalidSettings(f'{path}: it has no `verifier`, such as `verifier = "exact"`')
    try:
        return RunSettings.model_validate(nested(values))
    except ValidationError as error:
        first, *_ = fault_lines(error.errors(), dotted_keys(RunSettings))
        raise InvalidSettings(f"{path}: {first}") from None


def read_recipe(source: Path | str, overrides: Mapping[str, Any] | None = None) -> Reading:
    """As `load_recipe`, but with all faults; raises InvalidSettings if there is no TOML file."""
    return _checked(*read_values(source, overrides or {}))


def _checked(path: Path, values: dict[str, Any]) -> Reading:
    filled = {"name": path.stem, **values}
    # So the seeds of a sweep differ in the split of the problems too, not only in the training.
    if any(key.startswith("data.prepare.") for key in values):
        defaults = {name: RunSettings.model_fields[name].default for name in ("clients", "seed")}
        for name, default in defaults.items():
            filled.setdefault(f"data.prepare.{name}", values.get(name, default))
    faults = []
    try:
        filled = with_rounds(filled)
    except ValueError as error:
        faults.append(str(error))
        del filled["total_steps"]
    try:
        filled = _with_examples(filled)
    except InvalidProblems as error:
        faults.append(f"few_shot: {error.detail}")
        del filled["few_shot"]
    recipe, invalid = _validated(filled)
    faults += invalid
    if recipe is not None:
        faults += faults_of(recipe)
    return Reading(path, values, recipe, faults)


def _with_examples(values: dict[str, Any]) -> dict[str, Any]:
    """The values with the examples in the file that `few_shot` names.

    Raises InvalidProblems, naming the line, if it cannot be read.
    """
    path = values.get("few_shot")
    if not isinstance(path, Path):
        return values
    shots = []
    for number, line in read_jsonl(path):
        try:
            shots.append(Shot.model_validate_json(line).model_dump())
        except ValidationError as error:
            raise InvalidProblems(
                f"{path}, line {number}: {first_fault(error)}. A line looks like "
                '{"prompt": "2 + 2 =", "answer": "It is 4."}.'
            ) from None
    if not shots:
        raise InvalidProblems(f"{path} has no examples.")
    return values | {"few_shot": shots}


def with_rounds(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with `total_steps` as one number, and with `rounds`, which follows from it.

    Raises ValueError, beginning with the key, if that is impossible. Values of a wrong type stay as
    they are.
    """
    total = values.get("total_steps")
    if total is None:
        return dict(values)
    if "rounds" in values:
        raise ValueError("rounds: it follows from total_steps; give one of the two")
    tau = values.get("local_steps", RunSettings.model_fields["local_steps"].default)
    if isinstance(total, Mapping):
        if wrong := [key for key in total if key != ELSE and not key.isdecimal()]:
            raise ValueError(
                f"total_steps.{wrong[0]}: the keys are numbers of local_steps, or {ELSE!r}"
            )
        if str(tau) not in total and ELSE not in total:
            raise ValueError(
                f"total_steps: the table has no value for local_steps = {tau}, nor `else`"
            )
        total = total.get(str(tau), total.get(ELSE))
    if not (type(total) is type(tau) is int and total > 0 and tau > 0):
        return {**values, "total_steps": total}
    if total % tau:
        below = total // tau * tau
        near = f"{below} or {below + tau}" if below else f"{tau}"
        raise ValueError(
            f"total_steps: {total} is not a multiple of local_steps = {tau}, and a run ends with a "
            f"whole round; use {near}"
        )
    return {**values, "total_steps": total, "rounds": total // tau}


def _validated(values: dict[str, Any]) -> tuple[Recipe | None, list[str]]:
    """The recipe and its faults; a faulty recipe is read without the faulty values, if possible."""
    keys, faults = [EXTENDS, *dotted_keys(Recipe)], dict[str, None]()  # in order, each once
    recipe: Recipe | None = None
    for _ in range(2):  # contradictions are found only if each value by itself is right
        try:
            return Recipe.model_validate(nested(values)), list(faults)
        except ValidationError as error:
            faults |= dict.fromkeys(fault_lines(error.errors(), keys))
            for fault in error.errors():
                if fault["type"] == "contradiction":
                    recipe = fault["input"]  # each value by itself is right
                named = (part for part in fault["loc"] if isinstance(part, str))
                values = without(values, ".".join(named))
    return recipe, list(faults)


def faults_of(recipe: Recipe) -> Iterator[str]:
    """Each value that conflicts with another one, or names something that does not exist."""
    spec, clients = recipe.data.prepare, recipe.clients
    if recipe.data.private and len(recipe.data.private) != clients:
        yield f"data.private: {len(recipe.data.private)} files for clients = {clients}"
    if spec is not None and spec.clients != clients:
        yield f"data.prepare.clients: {spec.clients}, but clients = {clients}; leave it out"
    if spec is not None and spec.sizes_known:
        sizes = spec.sizes()
        for fault in set_sizes(recipe, sizes.public, {"each private set": sizes.private}):
            yield f"data.prepare: {fault}"
    keys = [*dotted_keys(Recipe), MEMBERS]
    for axis in dict.fromkeys(axis for table in recipe.sweep.grid for axis in table):
        if axis in _NOT_SWEPT:
            yield f"sweep.grid: {axis}: {_NOT_SWEPT[axis]}"
        elif axis not in keys:
            yield f"sweep.grid: {unknown_key(axis, keys)}"


def set_sizes(recipe: Recipe, public: int, private: dict[str, int]) -> Iterator[str]:
    """Sets with fewer problems than a step takes; `private` has sizes by the set's name."""
    b = recipe.grpo.prompts_per_step
    if recipe.exchange and public < b:
        yield f"the public set holds {public} problems, but a step takes {b}"
    for name, size in private.items():
        if size < b:
            yield f"{name} holds {size} problems, but a step takes {b}"
