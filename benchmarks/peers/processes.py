"""A peer's processes: started with a log, and ended with all their descendants."""

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import psutil

BENCHMARKS = Path(__file__).parents[1]
ROOT = BENCHMARKS.parent
STOP_SECONDS = 5.0
MARK = "PUBSWAP_BENCH"


def programs(name: str) -> Path:
    """The folder of a peer's programs; raises SystemExit if its environment is not complete."""
    folder = ROOT / f".venv-bench-{name}"
    if not (folder / "stamp").exists():
        raise SystemExit(f"{folder.name} is not complete; make it with `make venv-bench`.")
    return folder / "bin"


class Tree:
    """Processes and their descendants, all of which end with the block.

    Both peers start daemons that detach from their parents and sessions. They are found by a mark
    in the environment, which every descendant inherits.
    """

    def __init__(self, logs: Path, programs: Path, env: Mapping[str, str]) -> None:
        """A process's output goes to a file of its name in `logs`."""
        self.logs = logs
        self._programs = programs
        self._mark = secrets.token_hex(8)
        self._env = {
            **os.environ,
            "PYTHONPATH": str(BENCHMARKS),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            MARK: self._mark,
            **env,
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        while marked := self._marked():
            for process in marked:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate() if time.monotonic() < deadline else process.kill()
            psutil.wait_procs(marked, 1)
        for child in self._processes:
            child.wait()
        for file in self._files:
            file.close()

    def _marked(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._mark == _mark(process)]

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Run one of the environment's programs."""
        file = (self.logs / f"{name}.log").open("wb")
        self._files.append(file)
        process = subprocess.Popen(
            [str(self._programs / command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=self._env,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a process's log."""
        text = (self.logs / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def _mark(process: psutil.Process) -> str | None:
    try:
        return str(process.environ().get(MARK))
    except psutil.Error:  # it has ended, or we may not read it
        return None
