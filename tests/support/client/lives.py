"""A coordinator that is killed and restarted on one port and folder: one life after another."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.demo.processes import free_port
from support.coordinator.fleet import ENVIRONMENT, PatientServer
from support.forked import Forked

START_SECONDS = 60.0


class Lives:
    """Real `pubswap serve` processes, forked from one that has done the imports."""

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str] = {},
        data_dir: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "coordinator.log"
        self.trace = folder / "trace"
        self.data_dir = data_dir or folder / "data"
        self._port = free_port()
        self._env = os.environ | ENVIRONMENT | dict(env)
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def url(self) -> str:
        """The address of every life."""
        return f"http://127.0.0.1:{self._port}"

    @contextlib.contextmanager
    def server(self) -> Iterator[PatientServer]:
        """The coordinator for tests that create runs; its clients wait for the next life."""
        server = PatientServer(self.url, None, self.data_dir)
        with server.closing:
            yield server

    def begin(self, last: str | None = None) -> None:
        """Start a life, which ends at the point `last` if it reaches it."""
        arguments = ["serve", "--port", str(self._port), "--data-dir", str(self.data_dir)]
        points = ("support.chaos.server_points", str(self.trace), last)
        self._process = Forked(arguments, self.log, env=self._env, install=points)

    def wait_ready(self) -> None:
        """Return when it answers."""
        with CoordinatorClient(self.url, backoff=ONCE) as probe:
            wait_until_ready(probe, START_SECONDS, self._check)

    def _check(self) -> None:
        assert not self.ended(0), f"ended at its start; see {self.log}"

    def ended(self, seconds: float) -> bool:
        """Whether the life ends within this time."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill it by SIGKILL, unless it has done so itself."""
        assert self._process is not None
        self._process.kill()
        status = self._process.wait()
        assert status == -signal.SIGKILL, f"ended with {status} by itself; see {self.log}"
        self._process = None

    def failures(self) -> list[str]:
        """Log lines that report a bug of the product itself."""
        form = re.compile(r"\b(request|advance|housekeeping) failed")
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if form.search(line)]
