"""From a recipe's file, those that it extends, and values given on top, to one set of values.

Values are flat, by dotted key; the nearest one wins.
"""

import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pubswap_client.toml_files import read_toml
from pubswap_protocol.command_line.keys import flat, within
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.files import expanded
from pubswap_protocol.methods.registries import REGISTRIES

EXTENDS = "extends"
BASE = "base.toml"

# Tables that count as one value, which a nearer one replaces as a whole.
WHOLE = ("total_steps",)

# A file's own keys, which the files that extend it do not inherit.
_NOT_INHERITED = ("name", "about")

_PATHS = (
    "data.public",
    "data.test",
    "data.private",
    "data.folder",
    "data.prepare.from",
    "model.folder",
    "few_shot",
)

# Alternatives: a nearer key drops the keys with another number in the same row.
_ALTERNATIVES: tuple[Mapping[str, int], ...] = (
    {"rounds": 1, "total_steps": 2},
    {"data.public": 1, "data.test": 1, "data.private": 1, "data.folder": 2, "data.prepare": 3},
)


def shipped_folder() -> Path:
    """`deploy/recipes` of a checkout; an installed package contains a copy."""
    package = Path(__file__).parent
    inside = package / "files"
    return inside if inside.is_dir() else package.parents[2] / "deploy" / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """The shipped recipes by name, such as `qwen3-1.7b-math`, without files to extend."""
    folder = shipped_folder()
    files = [path for path in folder.rglob("*.toml") if path.name != BASE]
    return dict(
        sorted((path.relative_to(folder).as_posix()[: -len(".toml")], path) for path in files)
    )


def find_recipe(source: Path | str) -> Path:
    """The file for a path or a shipped recipe's name.

    Raises InvalidSettings, with a similar name, if there is none.
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
        f"There is no file or recipe {name!r}. "
        + (f"Did you mean {near[0]!r}? " if near else "")
        + "`pubswap recipe list` lists the recipes."
    )


def read_values(source: Path | str, changes: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The file for a path or a shipped recipe's name, and its values with `changes` on top.

    Raises InvalidSettings for a file that is not there, cannot be read, or extends itself.
    """
    path = find_recipe(source)
    return path, changed(_file_values(path), changes)


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values with `changes` on top, whose paths are relative to the working folder.

    Raises InvalidSettings for a file to extend.
    """
    if EXTENDS in changes:
        raise InvalidSettings(f"{EXTENDS} is a key of files alone: name that file itself.")
    return merged(values, absolute(flat(changes, WHOLE), Path.cwd()))


def _file_values(path: Path, extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file's values merged over those of the file that it extends, with absolute paths.

    Raises InvalidSettings for a file that cannot be read, or that extends itself.
    """
    file = path.resolve()
    if file in extending:
        circle = " extends ".join(file.name for file in (*extending, file))
        raise InvalidSettings(f"{extending[0]}: extends: the files form a circle: {circle}.")
    tables = read_toml(path)
    base = tables.pop(EXTENDS, None)
    values = absolute(flat(tables, WHOLE), file.parent)
    if base is None:
        return values
    inherited = _file_values(_base_of(file, base), (*extending, file))
    return merged({key: inherited[key] for key in inherited if key not in _NOT_INHERITED}, values)


def _base_of(file: Path, base: Any) -> Path:
    """The file that `file` extends: beside it, or shipped, by its name without `.toml`."""
    if not isinstance(base, str):
        raise InvalidSettings(f"{file}: extends: give the path of one file, not {base!r}.")
    path = file.parent / base if base.endswith(".toml") else find_recipe(base)
    if not path.is_file():
        raise InvalidSettings(f"{file}: extends: there is no file {path}.")
    return path


def merged(values: Mapping[str, Any], nearer: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings merged, without those of `values` that conflict with nearer ones."""
    retained = {
        key: value
        for key, value in values.items()
        if not any(_drops(near, key) for near in nearer)
        if not any(
            _renames(near, key, values, nearer) for near in REGISTRIES.keys() & nearer.keys()
        )
    }
    return retained | dict(nearer)


def _renames(setting: str, key: str, values: Mapping[str, Any], nearer: Mapping[str, Any]) -> bool:
    """Whether `key` is a parameter of a named value in place of which `nearer` has another one."""
    before = values.get(setting, REGISTRIES[setting].default)
    return key != setting and within(key, setting) and nearer[setting] != before


def _drops(nearer: str, key: str) -> bool:
    if (nearer, key) == ("model.source", "model.folder"):
        return True
    parameter = key in REGISTRIES or nearer in REGISTRIES  # beside the value's name, see `flat`
    if nearer != key and not parameter and (within(nearer, key) or within(key, nearer)):
        return True  # a table replaces a value, or a value a table
    return any(
        within(nearer, one) and within(key, other) and row[one] != row[other]
        for row in _ALTERNATIVES
        for one in row
        for other in row
    )


def absolute(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Make paths absolute from a folder, and add the model's own folder if it exists."""
    full = {key: _from(folder, values[key]) if key in _PATHS else values[key] for key in values}
    source = values.get("model.source")
    if isinstance(source, str) and "model.folder" not in values:
        model = folder / expanded(source)
        full |= {"model.folder": model} if model.is_dir() else {}
    return full


def _from(folder: Path, value: Any) -> Any:
    """Make a path absolute; other types stay, to be refused with their key."""
    if isinstance(value, str | Path):
        return folder / expanded(value)
    return [_from(folder, item) for item in value] if isinstance(value, list) else value


def parse_set(options: Iterable[str]) -> dict[str, Any]:
    """Values by dotted key. Raises InvalidSettings for an option with no key or no value."""
    return {key: value_of(text) for key, text in map(key_and_text, options)}


def key_and_text(option: str) -> tuple[str, str]:
    """Both sides of the first `=`. Raises InvalidSettings if one is empty, or there is none."""
    key, _, text = option.partition("=")
    if not key.strip() or not text.strip():
        raise InvalidSettings(f"{option!r}: write KEY=VALUE, such as method.period=4.")
    return key.strip(), text.strip()


def value_of(text: str) -> Any:
    """A TOML value, or plain text if it is not one, so that strings need no quotation marks."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
