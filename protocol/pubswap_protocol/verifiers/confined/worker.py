"""A process that scores responses, one at a time, each within a limit of CPU time."""

import contextlib
import logging
import mmap
import multiprocessing
import os
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from numbers import Real
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pubswap_protocol.bounds import MAX_PARTS, Label, Seconds, Share, Strict, plain
from pubswap_protocol.errors import PubSwapError, VerifierFault
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers import plugin
from pubswap_protocol.verifiers.confined import scratch
from pubswap_protocol.verifiers.confined.sandbox import confine
from pubswap_protocol.verifiers.reasoning import ReasoningGym
from pubswap_protocol.verifiers.verifier import Verifier

log = logging.getLogger(__name__)

Job = tuple[Verifier, str, Problem]
Score = Callable[[Verifier, str, Problem], float]

WARM_SECONDS = 60.0  # for the first use of a verifier in a process
WALL_FACTOR = 10.0  # a process that does not even compute is killed after this many limits
MEMORY_BYTES = 4 << 30  # address space of a worker, libraries included
SCRATCH_BYTES = 64 << 20  # of a file that a worker writes, and of all after each response
OPEN_FILES = 256
MOST_FILES = 1 << 20  # that an owner may have open

_MAX_REPLY = 1 << 16  # bytes
_READ_SECONDS = 10.0
_MAX_TOLD = 200  # characters of a fault
_PREPARED = "pubswap_protocol.verifiers.confined.prepared"

# The exit codes of a process that was stopped with its service, killed by the system when memory
# ran out, or orphaned.
_ENDED_FROM_OUTSIDE = (-signal.SIGTERM, -signal.SIGKILL, 255)
_DYING_SECONDS = 0.1  # until a process that closed its connection has an exit code
# Only one thread at a time may start a process.
_starting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Scored:
    """A response's score with those of its parts, if it has any, and the CPU seconds it took.

    If it was cut off, the score is 0.0, and the seconds are elapsed ones, up to the limit. `fault`
    is what the verifier raised or returned instead of a score.
    """

    score: float
    seconds: float
    cut_off: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""


class _Reply(Strict):
    """What a worker sends of a response, in JSON: it may run code that is not ours."""

    score: Share
    seconds: Seconds
    parts: Annotated[dict[Label, Share], Field(max_length=MAX_PARTS)]
    fault: Label
    full: bool
    ticket: Annotated[str, Field(max_length=32)]  # the job's, which nobody can know before


class Worker:
    """A process that starts with the first response, and is replaced when it dies or has used half
    of its memory.

    The limit is on CPU time and enforced by the kernel: a busy machine changes no verdict, and no
    verifier can run on. A process is forked in milliseconds from one that has imported the
    libraries.
    """

    def __init__(self, scorer: Score) -> None:
        """`scorer` must be importable by its name."""
        self._scorer = scorer
        self._process: ForkServerProcess | None = None
        self._connection: Connection | None = None
        self._scratch: Path | None = None
        self._used: set[Verifier] = set()
        self._plugins: tuple[str, ...] = ()

    def score(self, job: Job, seconds: float) -> Scored:
        """Score one response within `seconds` of CPU time; only one thread at a time may call it.

        Raises VerifierFault if no process can be started, or it ends before its first response.
        """
        for _ in range(2):
            began, warm = time.monotonic(), False
            with contextlib.suppress(EOFError, OSError, ValidationError):
                connection, ticket = self._connected(job[0]), secrets.token_hex(8)
                connection.send((job, seconds, ticket, _installed(job[0])))
                if job[0] not in self._used:
                    self._wait_until_warm(connection, job[0])
                warm = True
                if not connection.poll(WALL_FACTOR * seconds):
                    self.kill()
                    break
                reply = _Reply.model_validate_json(self._read(connection))
                if reply.ticket != ticket:
                    self.kill()
                    break
                if reply.full or scratch.size(self._scratch) > SCRATCH_BYTES:
                    self.kill()
                return Scored(reply.score, reply.seconds, parts=reply.parts, fault=reply.fault)
            # Ended from outside, perhaps with the whole service: not the response's fault.
            if self.kill() not in _ENDED_FROM_OUTSIDE:
                break
        if not warm:
            raise VerifierFault(
                f"The process that scores responses by {job[0]} ended before its first one, so "
                "nothing was scored. Its own message is above. It needs "
                f"{MEMORY_BYTES >> 30} GiB of address space and a folder for temporary files. In a "
                'script of your own, call this under `if __name__ == "__main__":`.'
            )
        return Scored(0.0, min(seconds, time.monotonic() - began), cut_off=True)

    def kill(self) -> int | None:
        """Kill the process, and return its exit code; the next response starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.join(_DYING_SECONDS)
        process.kill()
        process.join()
        if self._scratch is not None:
            scratch.remove(self._scratch)
        return process.exitcode

    def _wait_until_warm(self, connection: Connection, verifier: Verifier) -> None:
        """Wait for the verifier's first use in a process; raises VerifierFault if it cannot be."""
        if not connection.poll(WARM_SECONDS * WALL_FACTOR):
            self.kill()
            raise VerifierFault(f"The verifier {verifier} does not even score an empty response.")
        if fault := plain(self._read(connection).decode(errors="replace")):
            self.kill()
            raise VerifierFault(f"The verifier {verifier} cannot be used. {fault}")
        self._used.add(verifier)

    def _read(self, connection: Connection) -> bytes:
        """What the process has begun to send; one that does not end it is killed."""
        process = self._process
        if process is None:  # the pool was closed meanwhile
            raise EOFError
        ending = threading.Timer(_READ_SECONDS, process.kill)
        ending.daemon = True
        ending.start()
        try:
            return connection.recv_bytes(_MAX_REPLY)
        finally:
            ending.cancel()

    def _connected(self, verifier: Verifier) -> Connection:
        if verifier.plugins != self._plugins:  # whose code may have changed its process
            self.kill()
            self._plugins = verifier.plugins
        if self._process is None or self._connection is None or not self._process.is_alive():
            self.kill()
            with _starting:
                context = multiprocessing.get_context("forkserver")
                context.set_forkserver_preload([_PREPARED, _library(verifier)])
                self._connection, child_end = context.Pipe()
                self._scratch = scratch.make()
                process = context.Process(
                    target=_serve, args=(child_end, self._scratch, self._scorer), daemon=True
                )
                process.start()
                self._process = process
                child_end.close()
                self._used = set()
        return self._connection


def _library(verifier: Verifier) -> str:
    """The module to import before forking processes; the first verifier decides."""
    if isinstance(verifier, ReasoningGym):
        return "reasoning_gym"
    return "pubswap_protocol.verifiers.confined.warmed"


def _serve(connection: Connection, folder: Path, scorer: Score) -> None:
    limit = _limit_resources(connection)
    plugin.look_up()
    confine(folder)
    warm: set[Verifier] = set()
    full = False
    with contextlib.suppress(EOFError):
        while not full:
            job, seconds, ticket, installed = connection.recv()
            if job[0] not in warm:
                told = _warmed(scorer, job[0], installed) or ""
                connection.send_bytes(told[:_MAX_TOLD].encode())
                warm.add(job[0])
            started = time.process_time()
            # The signal has no handler, so it ends the process whatever that is computing.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            scored = guarded(scorer, job)
            signal.setitimer(signal.ITIMER_PROF, 0)
            seconds = time.process_time() - started
            # Libraries cache results, which would leave too little memory for later responses.
            full = limit is not None and _is_half_full(limit)
            reply = _Reply(
                score=scored.score,
                seconds=seconds,
                parts=dict(scored.parts),
                fault=scored.fault,
                full=full,
                ticket=ticket,
            )
            connection.send_bytes(reply.model_dump_json().encode())


def _installed(verifier: Verifier) -> list[str]:
    """The packages of the verifier's plug-ins, as this process has first found them."""
    return [str(plugin.package_of(name.partition(":")[2])) for name in verifier.plugins]


def _warmed(scorer: Score, verifier: Verifier, installed: list[str]) -> str | None:
    """Use the verifier for the first time, on an empty response; returns why it cannot be used."""
    signal.setitimer(signal.ITIMER_PROF, WARM_SECONDS)
    try:
        if _installed(verifier) != installed:
            return "Its package was installed anew meanwhile: restart this process."
        verifier.load()
    except PubSwapError as error:
        return error.detail
    except Exception as error:  # an installed package's own
        return f"It cannot be imported: {type(error).__name__}: {error}."
    guarded(scorer, (verifier, "", Problem(id="warm", prompt="?", answer="1")))
    return None


def _is_half_full(limit: int) -> bool:
    try:
        mmap.mmap(-1, limit // 2, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ).close()
    except OSError:
        return True
    return False


def _limit_resources(connection: Connection) -> int | None:
    """Limit what the process may use; returns its address space in bytes, None if unlimited."""
    # Ctrl-C reaches the whole process group; the pool's owner ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _close_all_but(connection)
    for name, most in (("CORE", 0), ("FSIZE", SCRATCH_BYTES), ("NOFILE", OPEN_FILES)):
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    if sys.platform == "darwin":  # which refuses any useful limit
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return limit


def _close_all_but(connection: Connection) -> None:
    """Leave the connection and where errors are written; what else was inherited is not ours."""
    silent = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(silent, standard)
    kept = connection.fileno()
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, kept)
    os.closerange(kept + 1, highest if 0 < highest < MOST_FILES else MOST_FILES)


def guarded(scorer: Score, job: Job) -> Scored:
    """The score, in CPU seconds; 0.0 if the verifier raises, or it is not from 0 to 1."""
    began, fault = time.thread_time(), ""
    try:
        score = scorer(*job)
        if isinstance(score, Real) and 0 <= score <= 1:
            seconds = time.thread_time() - began
            return Scored(float(score), seconds, parts=getattr(score, "parts", {}))
        fault = f"returned {score!r}"
    except (Exception, SystemExit) as error:
        fault = f"raised {type(error).__name__}: {error}"
    return Scored(0.0, time.thread_time() - began, fault=plain(fault)[:_MAX_TOLD])
