"""`pubswap` as processes forked from one that has already imported everything.

A daemon's imports take ten seconds of CPU time, and the tests start hundreds of daemons. Otherwise
these are ordinary processes, with a pid, environment, files and signals of their own.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from pubswap_client.demo.processes import PUBSWAP, Processes
from pubswap_protocol.verifiers import reasoning
from support import children

MODULES = (
    *("pubswap_client.daemon.session", "peft.utils.transformers_weight_conversion"),
    *("transformers.models.qwen3.modeling_qwen3", "matplotlib.backends.backend_agg"),
    *("math_verify", "pubswap_server.app", "pubswap_simulation.cli"),
    *("pubswap_simulation.sweep", "pubswap_simulation.worker"),
    *("uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl"),
)
LONGEST_SECONDS = 240.0  # the longest wait for a process to end; seconds are usually enough


class Forked:
    """A process of `pubswap arguments...`, with the methods of a Popen."""

    def __init__(
        self,
        arguments: Sequence[str],
        stdout: Path,
        stderr: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        install: Sequence[str | None] = (),
    ) -> None:
        """Append its output to files; `env`, if given, is its whole environment.

        `install` names a module and arguments: the module's `install` is called with them first.
        """
        self.log = stderr or stdout
        self.returncode: int | None = None
        for file in (stdout, self.log):
            file.touch()  # so that a test can read it before the process has written anything
        order = {
            "arguments": list(arguments),
            "stdout": str(stdout),
            "stderr": str(self.log),
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "install": list(install),
        }
        self.pid, self._status = _mother().fork(order)

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        if self.returncode is None:
            with contextlib.suppress(FileNotFoundError):
                self.returncode = int(self._status.read_text())
        return self.returncode

    def wait(self, timeout: float = LONGEST_SECONDS) -> int:
        """Wait for the exit status; raises TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"pubswap, which said:\n{self._tail()}\n", timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


def pubswap(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder) / "stdout", Path(folder) / "stderr"
        status = Forked(arguments, stdout, stderr, env, cwd).wait()
        return subprocess.CompletedProcess(
            arguments, status, stdout.read_text(), stderr.read_text(errors="replace")
        )


class ForkedProcesses(Processes):
    """The demo's processes, forked, with a module's `install` called in each."""

    def __init__(self, logs: Path, install: Sequence[str | None] = ()) -> None:
        super().__init__(logs)
        self._install = install

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        env: Mapping[str, str] = {},
        program: Sequence[str] = PUBSWAP,
    ) -> None:
        """Start `pubswap arguments...`."""
        assert program == PUBSWAP
        log = self.logs / f"{name}.log"
        log.write_bytes(b"")
        environment = os.environ | dict(env)
        forked: Any = Forked(arguments, log, env=environment, install=self._install)
        self._running[name] = forked


class _Mother:
    """The tests' handle on the process that has done the imports and forks the others."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pubswap-forked-")
        self._numbers = count()
        self._lock = threading.Lock()
        path = [str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        # No coverage here: only the forked processes are measured.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
        additions = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=inherited | additions | {"HF_HUB_OFFLINE": "1"},
            start_new_session=True,
        )
        atexit.register(self._end)

    def fork(self, order: dict[str, Any]) -> tuple[int, Path]:
        """Start a process; returns its pid and the file that will hold its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        status = Path(self._folder.name) / str(next(self._numbers))
        with self._lock:
            self._process.stdin.write(json.dumps(order | {"status": str(status)}).encode() + b"\n")
            self._process.stdin.flush()
            pid = self._process.stdout.readline()
        assert pid, "the process to fork from is gone"
        return int(pid), status

    def _end(self) -> None:
        self._process.communicate()
        self._folder.cleanup()


@cache
def _mother() -> _Mother:
    return _Mother()


def main() -> None:
    """For each line on stdin, fork a keeper that prints its child's pid and records its status."""
    for module in MODULES:
        importlib.import_module(module)
    reasoning.library()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are never waited for
    for line in iter(sys.stdin.buffer.readline, b""):
        if not os.fork():
            _keep(**json.loads(line))


def _keep(status: str, **order: Any) -> None:
    """Fork the process and record its exit status; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # multiprocessing puts sockets here and leaves them behind when a process is killed.
    process: Any = multiprocessing.current_process()
    process._config["tempdir"] = str(Path(status).parent)
    child = os.fork()
    if not child:
        _live(**order)
    os.write(1, f"{child}\n".encode())
    os.close(1)
    _, exit_code = os.waitpid(child, 0)
    half = Path(f"{status}.half")
    with contextlib.suppress(FileNotFoundError):  # the tests are over
        half.write_text(str(os.waitstatus_to_exitcode(exit_code)))
        half.rename(status)
    os._exit(0)


def _live(
    arguments: list[str],
    stdout: str,
    stderr: str,
    env: dict[str, str],
    cwd: str,
    install: list[str | None],
) -> None:
    """Run the command in this process; never returns."""
    os.setsid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, (path, mode) in enumerate(
        [(os.devnull, os.O_RDONLY), (stdout, flags), (stderr, flags)]
    ):
        opened = os.open(path, mode, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    measured = None
    if "COVERAGE_PROCESS_CONFIG" in env:
        import coverage

        measured = coverage.process_startup()
    status = 1
    try:
        if install:
            module, *rest = install
            faulthandler.dump_traceback_later(LONGEST_SECONDS / 2, repeat=True)
            importlib.import_module(str(module)).install(*rest)
        from pubswap_protocol.cli import main as command

        sys.argv = ["pubswap", *arguments]
        sys.orig_argv = [*PUBSWAP, *arguments]  # a leader starts its followers by these
        children.install(arguments)
        command()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if measured is not None:
            measured.stop()
            measured.save()
        os._exit(status)


if __name__ == "__main__":
    main()
