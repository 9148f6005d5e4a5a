"""The layers of a recipe: the files that it extends, the file itself, and values given beside it.

A layer is flat: values by dotted key. A later layer wins key by key.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pubswap_client.toml_files import read_toml
from pubswap_protocol.errors import InvalidSettings

BASE = "base.toml"


def shipped_folder() -> Path:
    """`deploy/recipes` of a checkout; an installed package has a copy of it within."""
    here = Path(__file__).parent
    inside = here / "files"
    return inside if inside.is_dir() else here.parents[2] / "deploy" / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """The shipped recipes by name, such as `qwen3-1.7b-math`; files to extend are none."""
    folder = shipped_folder()
    files = [path for path in folder.rglob("*.toml") if path.name != BASE]
    return dict(
        sorted((path.relative_to(folder).as_posix()[: -len(".toml")], path) for path in files)
    )


def find_recipe(source: Path | str) -> Path:
    """The file that a path or a shipped recipe's name means.

    Raises InvalidSettings, with names that are near, if there is none.
    """
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        return path
    name = path.as_posix()
    shipped = shipped_folder() / f"{name}.toml"
    if shipped.is_file():
        return shipped
    near = get_close_matches(name, shipped_recipes(), n=1)
    raise InvalidSettings(
        f"There is no file and no recipe {name!r}. "
        + (f"Is {near[0]!r} meant? " if near else "")
        + "`pubswap recipe list` names the recipes."
    )


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


_PATHS = ("data.public", "data.test", "data.private", "data.folder", "data.prepare.from")


def located(merged: Merged) -> Merged:
    """The same values with paths from the root, and with the model's folder if there is one."""
    values, layers = dict(merged.values), dict(merged.layers)
    for key in _PATHS:
        if key in values:
            values[key] = _from(layers[key].folder, values[key])
    source = values.get("model.source")
    if isinstance(source, str) and "model.folder" not in values:
        folder = layers["model.source"].folder / Path(source).expanduser()
        if folder.is_dir():
            values["model.folder"] = folder
            layers["model.folder"] = layers["model.source"]
    elif "model.folder" in values:
        values["model.folder"] = _from(layers["model.folder"].folder, values["model.folder"])
    return Merged(values, layers)


def _from(folder: Path, value: Any) -> Any:
    """Other types than paths are left to be refused with their key."""
    if isinstance(value, str | Path):
        return folder / Path(value).expanduser()
    return [_from(folder, item) for item in value] if isinstance(value, list) else value


def parse_set(options: Iterable[str]) -> dict[str, Any]:
    """Values by dotted key. Raises InvalidSettings for an option with no key or no value."""
    return {key: value_of(text) for key, text in map(key_and_text, options)}


def key_and_text(option: str) -> tuple[str, str]:
    """Both sides of the first `=`. Raises InvalidSettings if one is empty, or there is none."""
    key, _, text = option.partition("=")
    if not key.strip() or not text.strip():
        raise InvalidSettings(f"{option!r}: write KEY=VALUE, such as swap.period=4.")
    return key.strip(), text.strip()


def value_of(text: str) -> Any:
    """What TOML reads, and text where it is none: strings need no quotation marks."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
