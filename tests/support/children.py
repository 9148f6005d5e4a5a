"""What a forked command starts is forked from it: followers, a sweep's runs, the demo's members.

No such command has computed anything by then. Real ones are started by `support/client/crewed.py`,
by the doctor, by a simulation from Python, and by `chaos/faults/upgrade.py`. Also the server from
which verifiers' processes are forked; real ones are started by the tests of verifiers.
"""

import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import forkserver, util
from types import SimpleNamespace
from typing import Any

PUBSWAP = [sys.executable, "-m", "pubswap_protocol"]
WORKER = ["-m", "pubswap_simulation.worker"]


def install(arguments: Sequence[str]) -> None:
    """Have this process fork them, if it is such a command."""
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
    if arguments[:1] == ["simulate"]:
        return "--sweep" not in arguments
    return arguments[:1] in (["serve"], ["evaluate"]) or (
        arguments[:2] in (["client", "start"], ["client", "doctor"])
    )


def _serve_forks() -> None:
    """Start multiprocessing's fork server here, where the libraries are, and no threads yet."""
    spawn: Any = util.spawnv_passfds
    util.spawnv_passfds = _spawned  # type: ignore[attr-defined]
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = spawn  # type: ignore[attr-defined]


def _spawned(path: object, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """The pid of a Python that does what is behind its `-c`, with these descriptors."""
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


class _Child(subprocess.Popen[Any]):
    """A Python program that is known here, begun in a fork."""

    def _execute_child(self, *given: Any) -> None:
        """The arguments are private to the standard library, in this order."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            self._close_pipe_fds(*given[10:16])  # type: ignore[attr-defined]
            return
        if given[21]:  # start_new_session
            os.setsid()
        for number, descriptor in enumerate((given[10], given[13], given[15])):
            if descriptor != -1:
                os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(given[6])
        _live(given[0])


def _live(arguments: Sequence[str]) -> None:
    """Never returns."""
    status = 1
    try:
        if list(arguments[1:3]) == WORKER:
            from pubswap_simulation.worker import main

            _serve_forks()
            sys.argv = list(arguments[2:])
        else:
            assert list(arguments[:3]) == PUBSWAP
            from pubswap_protocol.cli import main

            given = list(arguments[len(PUBSWAP) :])
            if "RANK" not in os.environ:  # a follower verifies nothing
                install(given)
            sys.argv, sys.orig_argv = ["pubswap", *given], list(arguments)
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
