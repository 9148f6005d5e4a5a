"""A whole GRPO step by phase: rollout, reference, update, checkpoint."""

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.gpu.context import Context, peak_bytes, reset_peak
from benchmarks.gpu.engines import sampling
from benchmarks.timing import Clock
from benchmarks.workload import start_adapter, text
from pubswap_client.policy.policy import Policy
from pubswap_client.state.journal import Checkpoint, Journal, JournalOwner, RoundKey
from pubswap_client.training.memory import TokenBudget, default_budget
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext
from pubswap_protocol.digests import digest_of
from pubswap_protocol.problems import Problem


def step(context: Context, model: str, engine: str = "transformers", **vllm: Any) -> dict[str, Any]:
    """Private steps of a client; the first compiles, and counts only if there are no more."""
    policy = context.policy(model, context.scale.mean)
    with sampling(context, policy, context.folder(model), engine, **vllm) as made:
        return _steps(context, policy, made)


def _steps(context: Context, policy: Policy, engine: Any) -> dict[str, Any]:
    prompts = context.workload(policy).prompts
    problems = [Problem(id=str(n), prompt=text(p), answer="-") for n, p in enumerate(prompts)]
    budget = TokenBudget(default_budget(policy, checkpointing=False))
    trainer = LocalTrainer(UpdateContext(policy, budget), engine, "gpu", problems, coin)
    trainer.begin_round(1, start_adapter(policy.card.layout))
    phases = Phases(Clock(context.device))
    engine.generate = phases.of("rollout", engine.generate)
    policy.reference = phases.within("reference", policy.reference)  # type: ignore[method-assign]
    start = digest_of(b"gpu")
    journal = Journal(context.scratch / "state", JournalOwner("gpu", "gpu", start))
    metrics: list[StepMetrics] = []
    seconds: list[dict[str, float]] = []
    thread, keeping, writes = ThreadPoolExecutor(1), list[Future[None]](), list[float]()

    def keep(checkpoint: Checkpoint) -> None:
        started = time.monotonic()
        journal.save(checkpoint)
        writes.append(time.monotonic() - started)

    def checkpoint() -> None:
        if keeping:
            keeping.pop().result()
        saved = Checkpoint(RoundKey(1, start), tuple(metrics), trainer.snapshot())
        keeping.append(thread.submit(keep, saved))

    def work() -> None:
        phases.seconds.clear()
        metrics.append(phases.of("sampled and trained", trainer.private_step)(len(metrics) + 1))
        phases.of("checkpoint", checkpoint)()
        seconds.append(dict(phases.seconds))

    reset_peak(context.device)
    try:
        times = context.timed(work, repeats=2)
        keeping.pop().result()
    finally:
        thread.shutdown()
        del policy.reference  # type: ignore[method-assign]
    typical = min(seconds[1:] or seconds, key=lambda one: abs(sum(one.values()) - times["seconds"]))
    rest = typical["sampled and trained"] - typical["rollout"] - typical["reference"]
    return {
        **times,
        "phases": {
            "rollout": typical["rollout"],
            "reference": typical["reference"],
            "update": rest,  # pi_old comes from the first epoch's pass
            "checkpoint": typical["checkpoint"],  # until the next step may begin
        },
        "write_seconds": median(writes),  # in parallel with the next step
        "response_mean": metrics[-1].response_tokens,
        "tokens_per_second": metrics[-1].tokens / times["seconds"],
        "mismatch": metrics[-1].mismatch,
        "peak_bytes": peak_bytes(context.device),
    }


def coin(cases: Sequence[tuple[str, Problem]]) -> list[float]:
    """Pseudo-random rewards, the same for the same response."""
    return [float(zlib.crc32(response.encode()) % 2) for response, _ in cases]


class Phases:
    """Seconds spent in calls and contexts, by name."""

    def __init__(self, clock: Clock) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    def of(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call to add its time up under this name."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._under(name):
                return call(*args, **kwargs)

        return timed

    def within(self, name: str, manager: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a context manager to add up the time from entering to leaving it."""

        @contextmanager
        def timed() -> Iterator[None]:
            with self._under(name), manager():
                yield

        return timed

    @contextmanager
    def _under(self, name: str) -> Iterator[None]:
        started = self._clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._clock() - started
