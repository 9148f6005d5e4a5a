"""The other processes of `--processes N`: the same command again, with a rank in its environment.

They keep nothing, so nothing is lost when one dies: the leader ends too, and goes on where it was
when it is started again. They never outlive the leader.
"""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

log = logging.getLogger(__name__)

FAILED = 70  # EX_SOFTWARE
STOP_SECONDS = 10
_PR_SET_PDEATHSIG = 1


def launched_rank() -> int | None:
    """This process's rank if it is one of several: ours, or torchrun's."""
    return int(os.environ["RANK"]) if "RANK" in os.environ else None


@contextmanager
def followers(count: int, command: Sequence[str] | None = None) -> Iterator[None]:
    """Run `count` copies of this process's command as ranks 1.., this process being rank 0."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(count + 1),
        "LOCAL_WORLD_SIZE": str(count + 1),
    }
    processes = []
    for rank in range(1, count + 1):
        environment = os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        processes.append(subprocess.Popen(command or sys.orig_argv, env=environment))
    os.environ |= shared | {"RANK": "0", "LOCAL_RANK": "0"}
    stopping = threading.Event()
    for process in processes:
        threading.Thread(target=_end_with, args=(process, stopping), daemon=True).start()
    try:
        yield
    except BaseException:
        stopping.set()
        for process in processes:
            process.kill()  # they may wait for us in the middle of something, and keep nothing
        raise
    stopping.set()
    for process in processes:
        _stop(process)


def die_with_the_leader() -> None:
    """Make the kernel kill this process when its parent is gone (Linux), and ignore Ctrl-C.

    Ctrl-C reaches the whole terminal group; what follows from it is the leader's to decide.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with(process: subprocess.Popen[bytes], stopping: threading.Event) -> None:
    """End this process when a follower has died: it would wait for it for ever."""
    code = process.wait()
    if not stopping.is_set():
        log.error(
            "A process of this client ended with code %d; ending too. Start again to go on "
            "from the last step.",
            code,
        )
        # A collective operation under way cannot be interrupted from Python.
        os._exit(FAILED)


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
