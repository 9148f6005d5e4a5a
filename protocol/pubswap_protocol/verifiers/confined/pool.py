"""Verification in worker processes with limits on time and memory.

A response that hangs, crashes or exhausts memory scores 0, such as a tower of powers that fits no
machine.
"""

import contextlib
import queue
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from pubswap_protocol.bounds import VERIFIER_SECONDS
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.confined.sandbox import check_sandbox
from pubswap_protocol.verifiers.confined.worker import Job, Score, Scored, Worker, guarded, log
from pubswap_protocol.verifiers.registry import Given, judge_of, score, verifier_of

Item = tuple[str, Problem]


class VerifierPool:
    """Scores responses; its processes start when a verifier first needs one."""

    def __init__(
        self,
        workers: int = 1,
        seconds: float = VERIFIER_SECONDS,
        scorer: Score = score,
        unconfined: bool = False,
    ) -> None:
        """At most `seconds` of CPU for a response. `scorer` must be importable by its name.

        With `unconfined`, plug-ins run also where there is no whole sandbox.
        """
        self.workers, self.seconds, self.unconfined = workers, seconds, unconfined
        self._scorer = scorer
        self._closed = False
        self._workers = [Worker(scorer) for _ in range(workers)]
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the worker processes, even while they score a response."""
        self._closed = True
        for worker in self._workers:
            worker.kill()

    def prepare(self, verifiers: Iterable[Given]) -> None:
        """Try the plug-ins in these verifiers before any response depends on them.

        Raises VerifierFault if one cannot be used, InvalidSettings if it may not.
        """
        nothing = Problem(id="none", prompt="?", answer="none")
        for name in {name for given in verifiers for name in verifier_of(given).plugins}:
            self.score(name, ("", nothing))

    def at_once(self, verifier: Given, problems: Sequence[Problem]) -> bool:
        """Whether the verifiers of these problems are always quick, and need no process."""
        judges = {problem.verifier: judge_of(problem, verifier) for problem in problems}
        return self._scorer is score and all(each.quick for each in judges.values())

    def score(self, verifier: Given, item: Item, seconds: float | None = None) -> Scored:
        """Score one (response, problem) within `seconds` of CPU, by default the pool's.

        A problem's own verifier overrides the given one. Raises VerifierFault if this machine
        cannot run it.
        """
        text, problem = item
        job: Job = (judge_of(problem, verifier), text, problem)
        if job[0].plugins:
            job[0].check()  # here, because a confined process cannot look for packages
            if not self.unconfined:
                check_sandbox()
        if self.at_once(verifier, [problem]):
            return guarded(self._scorer, job)
        with self._worker() as worker:
            if self._closed:
                raise RuntimeError("The verifier pool is closed.")
            return worker.score(job, seconds or self.seconds)

    def score_many(self, verifier: Given, items: Sequence[Item]) -> list[float]:
        """A score from 0 to 1 for each (response, problem), in order; see `judge_many`."""
        return [scored.score for scored in self.judge_many(verifier, items)]

    def judge_many(self, verifier: Given, items: Sequence[Item]) -> list[Scored]:
        """The score of each (response, problem), in order.

        A response whose verifier takes too long, raises, or kills its process scores 0.0 and does
        not affect the others.
        """

        def score_item(item: Item) -> Scored:
            scored = self.score(verifier, item)
            if scored.cut_off or scored.fault:
                log.warning(
                    "The verifier %s %s on a response to %s: scored 0.",
                    judge_of(item[1], verifier),
                    scored.fault or "took too long, or ended its process,",
                    item[1].id,
                )
            return scored

        if self.at_once(verifier, [problem for _, problem in items]):
            return [score_item(item) for item in items]
        with ThreadPoolExecutor(self.workers, "verifying") as threads:
            return list(threads.map(score_item, items))

    @contextlib.contextmanager
    def _worker(self) -> Iterator[Worker]:
        worker = self._idle.get()
        try:
            yield worker
        finally:
            self._idle.put(worker)
