"""A coordinator under strace, and its system calls in order."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.demo.processes import PUBSWAP, Processes, free_port
from support.coordinator.fleet import ENVIRONMENT, PatientServer

CALLS = "fsync,fdatasync,rename,renameat,renameat2,read,recvfrom,write,writev,sendto,sendmsg"
# With seccomp-bpf, calls that are not traced cost nothing.
_OPTIONS = ("-f", "--seccomp-bpf")
_LINE = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")
_UNFINISHED = " <unfinished ...>"
_PATH = re.compile(r"\d+<([^>]*)>")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Call:
    """A system call that has returned: its name, its file or socket, and its text.

    `file` is a path, or `TCP:[…]` for a socket. For a rename, `text` is the new path.
    """

    name: str
    file: str
    text: str


@contextmanager
def straced(folder: Path, trace: Path) -> Iterator[PatientServer]:
    """`pubswap serve`, traced to a file until the end."""
    port = free_port()
    server = PatientServer(f"http://127.0.0.1:{port}", None, folder / "data")
    strace = ["strace", *_OPTIONS, "-yy", "-s", "1024", "-e", f"trace={CALLS}", "-e", "signal=none"]
    serve = ["serve", "--port", str(port), "--data-dir", str(server.data_dir)]
    with Processes(folder / "logs") as processes, server.closing:
        command = [*strace, "-o", str(trace), *PUBSWAP]
        processes.start("coordinator", serve, ENVIRONMENT, program=command)
        with CoordinatorClient(server.url, backoff=ONCE) as probe:
            wait_until_ready(probe, 120, processes.check)
        yield server


def calls(trace: Path) -> Iterator[Call]:
    """The trace's calls in the order in which they returned, except writes, by when they began.

    Thus each call has finished before the effect of any later one can be seen from outside.
    """
    begun: dict[tuple[str, str], str] = {}
    with trace.open(errors="replace") as lines:
        for line in lines:
            match = _LINE.match(line.rstrip("\n"))
            if match is None:
                continue
            thread, name, rest = match.groups()
            writes = name.startswith(("write", "send"))
            if rest.endswith(_UNFINISHED):
                begun[thread, name] = rest.removesuffix(_UNFINISHED)
                if writes:
                    yield _call(name, begun[thread, name])
            elif "resumed>" in line:
                if not writes:
                    yield _call(name, begun.pop((thread, name), "") + rest)
            else:
                yield _call(name, rest)


def _call(name: str, rest: str) -> Call:
    texts = _TEXT.findall(rest)
    if name.startswith("rename"):
        return Call(name, texts[0] if texts else "", texts[1] if len(texts) > 1 else "")
    file = _PATH.search(rest)
    return Call(name, file[1] if file else "", "".join(texts))


def missing() -> str | None:
    """Why nothing can be traced here, or None if it can."""
    if sys.platform != "linux" or shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", *_OPTIONS, "-o", "/dev/null", "true"], capture_output=True)
    return None if tried.returncode == 0 else "strace may not trace here, or is older than 5.3"
