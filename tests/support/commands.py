"""`pubswap` as a person calls it, in a fork of the tests' process: no imports to wait for."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from pubswap_protocol.cli import build_app, main

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


def called(
    arguments: Sequence[str], folder: Path, output: Path, env: Mapping[str, str] = {}
) -> Ended:
    """Run `pubswap arguments...` in a folder; a life that is too long ends by SIGALRM."""
    child = os.fork()
    if not child:
        _live(arguments, folder, output, env)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(status, output.read_text(errors="replace"))


def _live(arguments: Sequence[str], folder: Path, output: Path, env: Mapping[str, str]) -> None:
    status = 70
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIFE_SECONDS)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for place, number in (
            (os.open(os.devnull, os.O_RDONLY), 0),
            (descriptor, 1),
            (descriptor, 2),
        ):
            os.dup2(place, number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(n, m) for n, m in ((0, "r"), (1, "w"), (2, "w"))
        )
        os.chdir(folder)
        os.environ.update(env)
        sys.argv = ["pubswap", *arguments]
        main()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
