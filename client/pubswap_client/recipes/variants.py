"""The recipes that a sweep comes to: one for each setting of its grid."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pubswap_client.recipes.recipe import Reading, Recipe, read_recipe
from pubswap_client.recipes.sweep import MEMBERS, Value
from pubswap_protocol.errors import InvalidSettings

FEDERATED = "federated"


def load_variants(
    source: Path | str, overrides: Mapping[str, Any] | None = None
) -> Iterator[tuple[dict[str, Value], Recipe]]:
    """Each setting of a recipe's sweep, and the recipe with it.

    A baseline, `members` = alone or pooled, is the recipe with method fedavg; who its one client
    is, is not said in it. Raises InvalidSettings, naming the combination that is impossible.
    """
    for setting, reading in _readings(read_recipe(source, overrides)):
        if reading.recipe is None or reading.faults:
            raise InvalidSettings(f"{reading.path}: {combination(setting)}: {reading.faults[0]}")
        yield setting, reading.recipe


def impossible(reading: Reading) -> Iterator[str]:
    """What is wrong with the combinations of a sound recipe's sweep, each by its name."""
    for setting, varied in _readings(reading):
        yield from (f"sweep: {combination(setting)}: {fault}" for fault in varied.faults)


def repeated(reading: Reading) -> Iterator[str]:
    """Settings of a sweep that compute the same as another, such as fedavg at two swap periods."""
    first: dict[str, str] = {}
    for setting, varied in _readings(reading):
        computed = str(setting.get(MEMBERS, FEDERATED)) + _computed(varied.sound())
        name = combination(setting)
        if computed in first:
            yield f"{name} is the same run as {first[computed]}"
        first.setdefault(computed, name)


def _computed(recipe: Recipe) -> str:
    unused = {"sweep", "about", "name"}
    unused |= {"swap"} if recipe.method != "pubswap" else set()
    unused |= {"fedprox"} if recipe.method != "fedprox" else set()
    return recipe.model_dump_json(exclude=unused)


def combination(setting: Mapping[str, Value]) -> str:
    """Such as `method = pubswap, swap.period = 8`."""
    return ", ".join(f"{axis} = {value}" for axis, value in setting.items())


def _readings(reading: Reading) -> Iterator[tuple[dict[str, Value], Reading]]:
    for setting in reading.sound().sweep.settings():
        yield setting, _varied(reading, setting)


def _varied(reading: Reading, setting: Mapping[str, Value]) -> Reading:
    values: dict[str, Any] = {axis: v for axis, v in setting.items() if axis != MEMBERS}
    if setting.get(MEMBERS, FEDERATED) == FEDERATED:
        return reading.varied(values)
    # One client has nobody to swap with.
    varied = reading.varied(values | {"method": "fedavg"})
    if values.get("method", "fedavg") != "fedavg":
        fault = f"method: {setting[MEMBERS]!r} trains one client by itself; leave method out"
        return Reading(
            varied.path, varied.layers, varied.merged, varied.recipe, [fault, *varied.faults]
        )
    return varied
