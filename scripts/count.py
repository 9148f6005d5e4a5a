"""Print how much there is of this project: lines, settings, commands, words.

Lines are those of Python files, with docstrings and blank ones; settings as `pubswap settings`
lists them; words are those of docs/ and of the pages beside it. `make check` prints it, so that
growth is seen. It is no limit.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from pubswap_protocol.cli import build_app
from pubswap_protocol.command_line.settings import SettingsOwner, entries, settings_model

ROOT = Path(__file__).parents[1]
PRODUCT = ("protocol", "server", "client", "simulation")


def main() -> None:
    """Print the counts, one a line."""
    for name, folders in (
        ("product", PRODUCT),
        ("tests", ("tests",)),
        ("benchmarks", ("benchmarks",)),
    ):
        counts = {folder: lines(ROOT / folder) for folder in folders if (ROOT / folder).is_dir()}
        parts = ", ".join(f"{folder} {count:,}" for folder, count in counts.items())
        print(
            f"{name}: {sum(counts.values()):,} lines" + (f" ({parts})" if len(counts) > 1 else "")
        )
    settings = {owner.value: len(list(entries(settings_model(owner)))) for owner in SettingsOwner}
    parts = ", ".join(f"{owner} {count}" for owner, count in settings.items())
    print(f"settings: {sum(settings.values())} ({parts})")
    print(f"commands: {commands(typer.main.get_command(build_app()))}")
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    print(f"documentation: {sum(len(page.read_text().split()) for page in pages):,} words")


def lines(folder: Path) -> int:
    """The lines of all Python files in a folder."""
    return sum(len(path.read_text().splitlines()) for path in python_files(folder))


def python_files(folder: Path) -> Iterable[Path]:
    """The Python files in a folder, without what an environment put there."""
    return (path for path in folder.rglob("*.py") if ".venv" not in path.parts)


def commands(command: Any) -> int:
    """The number of commands at or below a command that have none below them."""
    return sum(map(commands, getattr(command, "commands", {}).values())) or 1


if __name__ == "__main__":
    main()
