"""The layers of a recipe: the files that it extends, the file itself, and values given beside it.

A layer is flat: values by dotted key. A later layer wins key by key.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pubswap_client.recipes.shipped import find_recipe
from pubswap_client.toml_files import read_toml
from pubswap_protocol.errors import InvalidSettings

EXTENDS = "extends"

# Tables that are one value: a layer that has one replaces it whole.
_WHOLE = ("total_steps", "data.prepare.tasks")

# What a file says of itself is not said of the files that extend it.
_OWN = ("name", "about")

# Of each row a layer's choice takes the place of an earlier layer's other choices.
_ALTERNATIVES = (
    (("rounds",), ("total_steps",)),
    (("data.public", "data.test", "data.private"), ("data.folder",), ("data.prepare",)),
)


@dataclass(frozen=True)
class Layer:
    """Values from one place; `folder` is what its relative paths are relative to."""

    origin: str
    folder: Path
    values: dict[str, Any]


@dataclass(frozen=True)
class Merged:
    """The values that hold, by dotted key, and the layer that each comes from."""

    values: dict[str, Any]
    layers: dict[str, Layer]

    def nested(self) -> dict[str, Any]:
        """The values as tables in tables."""
        tables: dict[str, Any] = {}
        for key, value in self.values.items():
            target = tables
            *names, last = key.split(".")
            for name in names:
                target = target.setdefault(name, {})
            target[last] = value
        return tables


def read_layers(path: Path) -> list[Layer]:
    """The layers of a file, that which is extended first.

    Raises InvalidSettings for a file that cannot be read, or that extends itself.
    """
    layers: list[Layer] = []
    seen: list[Path] = []
    following: Path | None = path
    while following is not None:
        current = following.resolve()
        if current in seen:
            circle = " extends ".join(file.name for file in [*seen, current])
            raise InvalidSettings(f"{path}: extends: a circle of files: {circle}.")
        seen.append(current)
        values = read_toml(following)
        base = values.pop(EXTENDS, None)
        if layers:
            values = {key: value for key, value in values.items() if key not in _OWN}
        layers.insert(0, Layer(following.name, current.parent, flat(values)))
        following = None if base is None else _extended(current, base)
    return layers


def _extended(path: Path, base: Any) -> Path:
    """The file that `path` extends: beside it, or shipped, by its name without `.toml`."""
    if not isinstance(base, str):
        raise InvalidSettings(f"{path}: extends: the path of one file, not {base!r}.")
    found = path.parent / base if base.endswith(".toml") else find_recipe(base)
    if not found.is_file():
        raise InvalidSettings(f"{path}: extends: there is no file {found}.")
    return found


def given(values: Mapping[str, Any], origin: str = "given") -> Layer:
    """A layer of values by dotted key, as a command line gives them."""
    return Layer(origin, Path.cwd(), flat(values))


def merge(layers: Iterable[Layer]) -> Merged:
    """All layers as one."""
    merged = Merged({}, {})
    for layer in layers:
        for dropped in _replaced(merged.values, layer.values):
            del merged.values[dropped], merged.layers[dropped]
        merged.values.update(layer.values)
        merged.layers.update(dict.fromkeys(layer.values, layer))
    return merged


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables in tables as values by dotted key."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = prefix + name
        if isinstance(value, Mapping) and key not in _WHOLE:
            found |= flat(value, key + ".")
        else:
            found[key] = value
    return found


def _replaced(earlier: Iterable[str], later: Iterable[str]) -> list[str]:
    """Which earlier keys cannot stay beside the later ones."""
    return [key for key in earlier if any(_excludes(other, key) for other in later)]


def _excludes(later: str, earlier: str) -> bool:
    if later != earlier and (_within(later, earlier) or _within(earlier, later)):
        return True  # a table took the place of a value, or a value that of a table
    for alternatives in _ALTERNATIVES:
        chosen = [any(_within(later, key) for key in keys) for keys in alternatives]
        found = [any(_within(earlier, key) for key in keys) for keys in alternatives]
        if any(chosen) and any(found) and chosen != found:
            return True
    return False


def _within(key: str, table: str) -> bool:
    return key == table or key.startswith(table + ".")
