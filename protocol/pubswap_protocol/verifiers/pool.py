"""Verification in worker processes with limits of time and memory.

What hangs, crashes or grows scores 0: a response may be a tower of powers that no machine holds.
"""

import logging
import multiprocessing
import resource
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Self

from pebble import ProcessPool

from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.registry import bounded, score

log = logging.getLogger(__name__)

Item = tuple[str, Problem]
Job = tuple[str, str, Problem]
Score = Callable[[str, str, Problem], float]

CHUNK = 32
WARM_SECONDS = 60.0
MEMORY_BYTES = 4 << 30  # address space of a worker, libraries included


class VerifierPool:
    """Scores responses; its processes start with the first verifier that needs one."""

    def __init__(self, workers: int = 1, seconds: float = 5.0, scorer: Score = score) -> None:
        """At most `seconds` for one response. `scorer` must be importable by its name."""
        self._workers = workers
        self._seconds = seconds
        self._scorer = scorer
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None
        self._warm: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        with self._lock:
            if self._pool is not None:
                self._pool.stop()
                self._pool.join()
                self._pool = None

    def score_many(self, name: str, items: Sequence[Item]) -> list[float]:
        """1.0 or 0.0 for each (response, problem), in order.

        A problem's own verifier goes before `name`. A response whose verifier takes too long,
        raises, or kills its process scores 0.0 and costs the others nothing.
        """
        jobs = [(problem.verifier or name, text, problem) for text, problem in items]
        scores = [
            _guarded(self._scorer, job) if bounded(job[0]) and self._scorer is score else None
            for job in jobs
        ]
        places = [place for place, found in enumerate(scores) if found is None]
        pooled = self._pooled([jobs[place] for place in places]) if places else []
        for place, found in zip(places, pooled, strict=True):
            scores[place] = found
        return [float(found or 0.0) for found in scores]

    def _pooled(self, jobs: list[Job]) -> list[float]:
        chunks = [jobs[start : start + CHUNK] for start in range(0, len(jobs), CHUNK)]
        self._warm_up(jobs)
        futures = [self._schedule(chunk) for chunk in chunks]
        scores: list[float] = []
        for chunk, future in zip(chunks, futures, strict=True):
            found = _result(future)
            # One bad response must not cost its whole chunk: go through it one by one.
            scores += found if found is not None else [self._alone(job) for job in chunk]
        return scores

    def _alone(self, job: Job) -> float:
        found = _result(self._schedule([job]))
        if found is None:
            # Its process was replaced by one that has imported nothing yet.
            self._warm.clear()
            self._warm_up([job])
            log.warning("The verifier %s failed on a response to %s: 0.", job[0], job[2].id)
            return 0.0
        return found[0]

    def _schedule(self, jobs: list[Job], seconds: float | None = None) -> "Future[list[float]]":
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPool(
                    self._workers,
                    initializer=_confine,
                    context=multiprocessing.get_context("spawn"),
                )
            future: Future[list[float]] = self._pool.schedule(
                _score_chunk, args=[self._scorer, jobs], timeout=seconds or self._seconds
            )
            return future

    def _warm_up(self, jobs: list[Job]) -> None:
        """The first use of a verifier imports its library, which the limit is not about."""
        for name, _, problem in {job[0]: job for job in jobs}.values():
            if name not in self._warm:
                _result(self._schedule([(name, "", problem)], WARM_SECONDS))
                self._warm.add(name)


def _result(future: "Future[list[float]]") -> list[float] | None:
    try:
        return future.result()
    except Exception:  # too long, a dead process, or too much memory
        return None


def _confine() -> None:
    # Ctrl-C reaches the whole process group; the pool's owner ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _score_chunk(scorer: Score, jobs: list[Job]) -> list[float]:
    return [_guarded(scorer, job) for job in jobs]


def _guarded(scorer: Score, job: Job) -> float:
    try:
        return float(scorer(*job))
    except Exception as error:
        log.warning("The verifier %s raised %s: 0.", job[0], type(error).__name__)
        return 0.0
