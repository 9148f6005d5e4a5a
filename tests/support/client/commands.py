"""`pubswap` as a person calls it, without the imports to wait for."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import typer

from pubswap_protocol.cli import build_app
from support.chaos.zygote import CLIENT, SERVER, Zygote

LIFE_SECONDS = 60


@dataclass(frozen=True)
class Ended:
    """How a command ended, and all that it said."""

    status: int
    said: str


def commands() -> Iterator[str]:
    """Every command there is, such as `run create`."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        below = getattr(command, "commands", None)
        if below is None:
            yield " ".join(path)
            return
        for name, child in below.items():
            yield from walk(child, (*path, name))

    return walk(typer.main.get_command(build_app()), ())


class Caller:
    """Calls commands, one after another, each in a fork of a process that has imported it all."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._zygote = Zygote(log, ("support.client.commands", *CLIENT, *SERVER, "reasoning_gym"))

    def __enter__(self) -> Self:
        self._zygote.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._zygote.__exit__(*error)

    def __call__(self, words: Sequence[str], folder: Path, env: Mapping[str, str] = {}) -> Ended:
        """Run `pubswap words...` in the folder; SIGALRM ends a life that is too long."""
        self._log.write_bytes(b"")
        status = self._zygote.live(words, folder, env=env)
        return Ended(status, self._log.read_text(errors="replace"))


def install(folder: Path, _: str | None) -> None:
    """Begin a life in the folder."""
    signal.alarm(LIFE_SECONDS)
    os.chdir(folder)
