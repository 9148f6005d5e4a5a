"""Fork the children of a forked command: followers, a sweep's runs, the demo's members.

Forking is safe because no such command has computed anything by then. Children are started for real
by `support/client/crewed.py`, the doctor, a simulation from Python, and `chaos/faults/upgrade.py`.
The server from which verifiers' processes are forked is forked too; the tests of verifiers start
real ones.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, util
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Self, cast

PUBSWAP = [sys.executable, "-m", "pubswap_protocol"]
WORKER = ["-m", "pubswap_simulation.worker"]


def install(arguments: Sequence[str]) -> None:
    """Have this process fork its children, if it is such a command."""
    if _verifies(arguments):
        _serve_forks()
    from pubswap_client.demo import processes
    from pubswap_client.distributed import launch
    from pubswap_simulation import processes as runs

    named: Any = SimpleNamespace(**vars(subprocess) | {"Popen": _Child})
    if arguments[:2] == ["client", "start"]:
        launch.subprocess = named
    elif arguments[:1] == ["simulate"]:
        runs.subprocess = named
    elif arguments[:1] == ["demo"]:
        processes.subprocess = named


def _verifies(arguments: Sequence[str]) -> bool:
    return arguments[:1] in (["serve"], ["evaluate"]) or (
        arguments[:2] in (["client", "start"], ["client", "doctor"])
    )


def _serve_forks() -> None:
    """Start multiprocessing's fork server while the libraries are loaded and no thread runs yet."""
    spawn: Any = util.spawnv_passfds
    util.spawnv_passfds = _spawned  # type: ignore[attr-defined]
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = spawn  # type: ignore[attr-defined]


def _spawned(path: object, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """Fork a Python that runs the code after `-c` with these descriptors; returns its pid."""
    if pid := os.fork():
        return pid
    try:
        last = 2
        for descriptor in sorted(descriptors):
            os.closerange(last + 1, descriptor)
            last = descriptor
        os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))
        exec(arguments[-1], {"__name__": "__main__"})
    finally:
        os._exit(0)


class _Child:
    """A Python program run in a fork, with as much of Popen's interface as these commands use."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        assert stdin in (None, subprocess.DEVNULL)
        self.args = args
        self.returncode: int | None = None
        self.stdout: IO[Any] | None = None
        self._lock = threading.Lock()
        if stdout == subprocess.PIPE:
            read_end, stdout = os.pipe()
            self.stdout = os.fdopen(read_end, "r" if text else "rb")
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            if self.stdout is not None:
                os.close(cast(int, stdout))
            return
        if start_new_session:
            os.setsid()
        if stdin is not None:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _become(1, stdout)
        _become(2, 1 if stderr == subprocess.STDOUT else stderr)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        if cwd is not None:
            os.chdir(cwd)
        _live(args)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stdout is not None:
            self.stdout.close()
        self.wait()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, float(timeout or 0))
            time.sleep(0.005)
        return status

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _become(number: int, of: int | IO[Any] | None) -> None:
    """Redirect a standard stream; None leaves it as it is."""
    if of is not None:
        os.dup2(of if isinstance(of, int) else of.fileno(), number)


def _live(arguments: Sequence[str]) -> None:
    """Run the program in this fork; never returns."""
    status = 1
    try:
        if list(arguments[1:3]) == WORKER:
            from pubswap_simulation.worker import main

            _serve_forks()
            sys.argv = list(arguments[2:])
        else:
            assert list(arguments[:3]) == PUBSWAP
            from pubswap_protocol.cli import main

            words = list(arguments[len(PUBSWAP) :])
            if "RANK" not in os.environ:  # a follower verifies nothing
                install(words)
            sys.argv, sys.orig_argv = ["pubswap", *words], list(arguments)
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
