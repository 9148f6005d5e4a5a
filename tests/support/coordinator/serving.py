"""Real `pubswap serve` processes, which tests may stop, kill and restart."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.demo.processes import PUBSWAP, free_port
from support.coordinator.coordinator import OPERATOR_TOKEN, Server
from support.forked import Forked


class Serving:
    """A coordinator on data in `folder`; the process ends with the block."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        port: int,
        options: Sequence[str] = (),
        env: Mapping[str, str] = {},
        token: str | None = OPERATOR_TOKEN,
        program: Sequence[str] = PUBSWAP,
    ) -> None:
        """Prepare the process without starting it."""
        self.server = Server(f"http://127.0.0.1:{port}", None, folder / "data")
        self.log = folder / f"coordinator-{port}.log"
        where = ["--port", str(port), "--data-dir", str(folder / "data")]
        self._program = program
        self._arguments = ["serve", *where, "--database-url", database_url, *options]
        self._env = os.environ | {"PUBSWAP_TICK_SECONDS": "0.1"} | dict(env)
        if token is not None:
            self._env["PUBSWAP_OPERATOR_TOKEN"] = token
        self.process: subprocess.Popen[bytes] | Forked

    def start(self) -> None:
        """Start it, and return at once."""
        if self._program is PUBSWAP:
            self.process = Forked(self._arguments, self.log, env=self._env)
            return
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._program, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Return when it answers; fails with its log if it died."""

        def check() -> None:
            assert self.process.poll() is None, self.log.read_text()[-5000:]

        with CoordinatorClient(self.server.url, backoff=ONCE) as probe:
            wait_until_ready(probe, 60, check)

    def workers(self) -> list[int]:
        """The worker processes, if there are several."""
        processes = psutil.Process(self.process.pid).children()
        return [child.pid for child in processes if _serves(child)]

    def __enter__(self) -> Self:
        self.start()
        self.server.closing.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.closing.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                for child in children(self.process.pid):
                    os.kill(child, 9)
                self.process.kill()
                self.process.wait()


def serve(folder: Path, database_url: str, options: Sequence[str] = ()) -> Serving:
    """A coordinator on a free port that is ready when the block begins."""
    return _Ready(folder, database_url, free_port(), options)


class _Ready(Serving):
    def __enter__(self) -> Self:
        super().__enter__()
        self.wait_until_ready()
        return self


def children(pid: int) -> list[int]:
    """The living children of a process, and their children."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _serves(child: psutil.Process) -> bool:
    try:
        return any("spawn_main" in word for word in child.cmdline())
    except psutil.NoSuchProcess:
        return False
