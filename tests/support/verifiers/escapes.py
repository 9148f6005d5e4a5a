"""Scorers that try to get out of their process: a response names what to try.

Each scores 1.0 if it was possible and 0.5 if the system refused it.
"""

import ctypes
import errno
import fcntl
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.verifier import Verifier


def escaping(verifier: Verifier, response: str, problem: Problem) -> float:
    """Try what the response says, with what the problem's metadata gives; 0 for nothing."""
    attempt = ATTEMPTS.get(response)
    if attempt is None:
        return 0.0
    try:
        attempt(problem.metadata)
    except (OSError, KeyError, ValueError, subprocess.SubprocessError):
        return 0.5
    return 1.0


Given = dict[str, str]


def _connect(kind: socket.AddressFamily, how: socket.SocketKind, to: object) -> None:
    with socket.socket(kind, how) as opened:
        opened.settimeout(2)
        opened.connect(to)  # type: ignore[arg-type]
        opened.send(b"out")


def _forked() -> None:
    if os.fork() == 0:
        os._exit(0)


def _started_thread() -> None:
    done: list[int] = []
    thread = threading.Thread(target=done.append, args=(1,))
    thread.start()
    thread.join(10)
    if not done:
        raise OSError("no thread")


def _scratch() -> None:
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("x" * 1000)
    assert Path(file.name).stat().st_size == 1000
    Path("here").write_text("also in the working folder")


def _typed() -> None:
    """Only EPERM is a refusal: no terminal is here."""
    try:
        fcntl.ioctl(2, 0x5412, b"x")
    except OSError as error:
        if error.errno != errno.ENOTTY:
            raise


def _owned(process: int) -> None:
    """Let the end of a pipe belong to a process, which gets a signal when there is something."""
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, process)
    os.close(writing)


def _call(number: int, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _import(given: Given) -> None:
    import wave  # not imported before, and of no use to anybody

    assert wave.__file__


ATTEMPTS: dict[str, Callable[[Given], object]] = {
    "read a file": lambda given: Path(given["file"]).read_text(),
    "read /etc/passwd": lambda _: Path("/etc/passwd").read_text(),
    "list a folder": lambda given: list(Path(given["folder"]).iterdir()),
    "write beside a file": lambda given: Path(given["new"]).write_text("out"),
    "remove a file": lambda given: Path(given["file"]).unlink(),
    "cut a file": lambda given: os.truncate(given["file"], 0),
    "open a file's rights": lambda given: Path(given["file"]).chmod(0o777),
    "change a file's time": lambda given: os.utime(given["file"], (1, 1)),
    "link a file": lambda given: os.link(given["file"], "linked"),
    "connect": lambda given: _connect(
        socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(given["port"]))
    ),
    "send a datagram": lambda given: _connect(
        socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", int(given["port"]))
    ),
    "connect a unix socket": lambda given: _connect(
        socket.AF_UNIX, socket.SOCK_STREAM, given["unix"]
    ),
    "fork": lambda _: _forked(),
    "run a program": lambda given: subprocess.run(["/bin/true"], check=True),
    "become a program": lambda _: os.execv(sys.executable, [sys.executable, "-c", "pass"]),
    "kill the parent": lambda given: os.kill(int(given["pid"]), signal.SIGUSR1),
    "have the system signal the parent": lambda given: _owned(int(given["pid"])),
    "ask whether the parent lives": lambda given: os.kill(int(given["pid"]), 0),
    "read the parent's environment": lambda given: Path(
        f"/proc/{given['pid']}/environ"
    ).read_bytes(),
    "read own environment": lambda _: Path("/proc/self/environ").read_bytes(),
    "limit the parent": lambda given: resource.prlimit(
        int(given["pid"]), resource.RLIMIT_NOFILE, (8, 8)
    ),
    "slow the parent": lambda given: os.sched_setaffinity(int(given["pid"]), {0}),
    "raise the memory": lambda _: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)),
    "type into the terminal": lambda _: _typed(),
    "open io_uring": lambda _: _call(425, 8, ctypes.create_string_buffer(256)),
    "trace the parent": lambda given: _call(101, 16, int(given["pid"]), 0, 0),
    "start a thread": lambda _: _started_thread(),
    "write in the scratch folder": lambda _: _scratch(),
    "import a module": _import,
    "say the secret": lambda given: os.environ[given["secret"]] and None,
}


def answering(verifier: Verifier, response: str, problem: Problem) -> float:
    """Answers by itself: half of a message, a right answer in advance, or code."""
    said = {
        "half": struct.pack("!i", 100) + b"x",
        "forged": _framed(
            b'{"score":1,"seconds":0,"parts":{},"fault":"","full":false,"ticket":"0"}'
        ),
        "code": _framed(pickle.dumps(_GoneAtOnce())),
    }.get(response)
    if said is None:
        return 0.0
    for descriptor in range(3, 64):
        with suppress(OSError):
            os.write(descriptor, said)
    time.sleep(60)
    return 0.0


def _framed(message: bytes) -> bytes:
    return struct.pack("!i", len(message)) + message


def gone(verifier: Verifier, response: str, problem: Problem) -> float:
    """Ends its process, whatever the response is."""
    os._exit(3)


class _GoneAtOnce:
    """A scorer whose process ends before it is confined."""

    def __call__(self, verifier: Verifier, response: str, problem: Problem) -> float:
        return 1.0

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (3,)


gone_at_once = _GoneAtOnce()
