"""The demo's processes: each a real `pubswap` command with its own log file."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from pubswap_protocol.errors import ServerFault

STOP_SECONDS = 10.0
PUBSWAP = (sys.executable, "-m", "pubswap_protocol")


def free_port() -> int:
    """A TCP port on loopback that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Processes:
    """Child processes that end when the block does."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        env: Mapping[str, str] = {},
        program: Sequence[str] = PUBSWAP,
    ) -> None:
        """Run `program arguments...`, by default pubswap, with its output in `name`.log."""
        with (self.logs / f"{name}.log").open("wb") as file:
            self._running[name] = subprocess.Popen(
                [*program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(env),
                # Ctrl-C reaches only the demo, which then stops its children in order.
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises ServerFault, with the end of its log, if a process has failed."""
        for name, process in self._running.items():
            if process.poll():
                log = self.logs / f"{name}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                excerpt = tail or f"{log} is empty; is there room on the disk?"
                raise ServerFault(f"{name} ended with status {process.returncode}:\n{excerpt}")
