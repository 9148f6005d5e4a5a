"""Paths of a recipe, each relative to the file that names it."""

from pathlib import Path
from typing import Any

from pubswap_client.recipes.layers import Merged

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
