"""Servers of other projects, as processes that end with the block."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.eventually import until


def installed(name: str, package: str) -> str:
    """Path of an installed program; skips the test if it is not installed."""
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip(f"{name} is not installed (Debian: {package})")
    return program


@contextlib.contextmanager
def listening(
    command: Sequence[str],
    log: Path,
    port: int,
    host: str = "127.0.0.1",
    stop_seconds: float = 10.0,
) -> Iterator[None]:
    """Run a server that listens when the block begins; fail with its log if it dies before.

    After the block it has `stop_seconds` to stop, then it is killed.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return True
        return False

    try:
        until(listens)
        yield
    finally:
        process.terminate()
        try:
            process.wait(stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
