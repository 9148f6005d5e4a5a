"""All commands of `pubswap`, and a call of one."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from pubswap_protocol.cli import build_app
from support.forked import Forked

LIFE_SECONDS = 60


@dataclass(frozen=True)
class Ended:
    """A command's exit status and its whole output."""

    status: int
    output: str


def commands() -> Iterator[str]:
    """Every command, such as `run create`."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        below = getattr(command, "commands", None)
        if below is None:
            yield " ".join(path)
            return
        for name, child in below.items():
            yield from walk(child, (*path, name))

    return walk(typer.main.get_command(build_app()), ())


def call(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> Ended:
    """Run `pubswap words...` in the folder, with `env` added to the environment."""
    log = Path(f"{folder}.log")
    log.unlink(missing_ok=True)
    process = Forked(words, log, env=os.environ | dict(env), cwd=folder)
    return Ended(process.wait(LIFE_SECONDS), log.read_text(errors="replace"))
