"""A process that scores responses, one at a time, each within a limit of CPU time."""

import contextlib
import logging
import mmap
import multiprocessing
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from numbers import Real

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.reasoning import ReasoningGym
from pubswap_protocol.verifiers.verifier import Verifier

log = logging.getLogger(__name__)

Job = tuple[Verifier, str, Problem]
Score = Callable[[Verifier, str, Problem], float]

WARM_SECONDS = 60.0  # for the first use of a verifier in a process
WALL_FACTOR = 10.0  # a process that does not even compute is killed after this many limits
MEMORY_BYTES = 4 << 30  # address space of a worker, libraries included

# The exit codes of a process that was stopped with its service, killed by the system when memory
# ran out, or orphaned.
_ENDED_FROM_OUTSIDE = (-signal.SIGTERM, -signal.SIGKILL, 255)
_DYING_SECONDS = 0.1  # until a process that closed its connection has an exit code
# Only one thread at a time may start a process.
_starting = threading.Lock()


@dataclass(frozen=True, slots=True)
class Scored:
    """A response's score with those of its parts, if it has any, and the CPU seconds it took.

    If it was cut off, the score is 0.0, and the seconds are elapsed ones, up to the limit.
    """

    score: float
    seconds: float
    cut_off: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)


class Worker:
    """A process that starts with the first response, and is replaced when it dies or has used half
    of its memory.

    The limit is on CPU time and enforced by the kernel: a busy machine changes no verdict, and no
    verifier can run on. A process is forked in milliseconds from one that has imported the
    libraries.
    """

    def __init__(self) -> None:
        self._process: ForkServerProcess | None = None
        self._connection: Connection | None = None
        self._used: set[str] = set()

    def score(self, scorer: Score, job: Job, seconds: float) -> Scored:
        """Score one response within `seconds` of CPU time; only one thread at a time may call it.

        Raises OSError or EOFError if no process can be started.
        """
        for _ in range(2):
            connection, began = self._connected(job[0]), time.monotonic()
            with contextlib.suppress(EOFError, OSError):
                connection.send((scorer, job, seconds))
                if not connection.poll(self._wall(job[0], seconds)):
                    self.kill()
                    break
                scored: Scored
                scored, full = connection.recv()
                if full:
                    self.kill()
                return scored
            # Ended from outside, perhaps with the whole service: not the response's fault.
            if self.kill() not in _ENDED_FROM_OUTSIDE:
                break
        return Scored(0.0, min(seconds, time.monotonic() - began), cut_off=True)

    def kill(self) -> int | None:
        """Kill the process, and return its exit code; the next response starts a new one."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.join(_DYING_SECONDS)
        process.kill()
        process.join()
        return process.exitcode

    def _wall(self, verifier: Verifier, seconds: float) -> float:
        warm = 0.0 if str(verifier) in self._used else WARM_SECONDS
        self._used.add(str(verifier))
        return WALL_FACTOR * seconds + warm

    def _connected(self, verifier: Verifier) -> Connection:
        if self._process is None or self._connection is None or not self._process.is_alive():
            with _starting:
                context = multiprocessing.get_context("forkserver")
                context.set_forkserver_preload([__name__, _library(verifier)])
                self._connection, child_end = context.Pipe()
                process = context.Process(target=_serve, args=(child_end,), daemon=True)
                process.start()
                self._process = process
                child_end.close()
                self._used = set()
        return self._connection


def _library(verifier: Verifier) -> str:
    """The module to import before forking processes; the first verifier decides."""
    if isinstance(verifier, ReasoningGym):
        return "reasoning_gym"
    return "pubswap_protocol.verifiers.warmed"


def _serve(connection: Connection) -> None:
    limit = _confine()
    warm: set[str] = set()
    full = False
    with contextlib.suppress(EOFError):
        while not full:
            scorer, job, seconds = connection.recv()
            verifier, _, problem = job
            if str(verifier) not in warm:
                signal.setitimer(signal.ITIMER_PROF, WARM_SECONDS)
                guarded(scorer, (verifier, "", problem))
                warm.add(str(verifier))
            started = time.process_time()
            # The signal has no handler, so it ends the process whatever that is computing.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            scored = guarded(scorer, job)
            signal.setitimer(signal.ITIMER_PROF, 0)
            # Libraries cache results, which would leave too little memory for later responses.
            full = _is_half_full(limit)
            connection.send((replace(scored, seconds=time.process_time() - started), full))


def _is_half_full(limit: int) -> bool:
    try:
        mmap.mmap(-1, limit // 2, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ).close()
    except OSError:
        return True
    return False


def _confine() -> int:
    # Ctrl-C reaches the whole process group; the pool's owner ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return limit


def guarded(scorer: Score, job: Job) -> Scored:
    """The score, without its seconds; 0.0 if the verifier raises, or it is not from 0 to 1."""
    try:
        score = scorer(*job)
        if not isinstance(score, Real) or not 0 <= score <= 1:
            raise ValueError
        return Scored(float(score), 0.0, parts=getattr(score, "parts", {}))
    except Exception as error:
        log.warning("The verifier %s raised %s: scored 0.", job[0], type(error).__name__)
        return Scored(0.0, 0.0)
