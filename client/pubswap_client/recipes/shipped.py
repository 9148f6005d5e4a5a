"""The recipes that come with PubSwap, and how one is found by its name."""

from difflib import get_close_matches
from pathlib import Path

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
