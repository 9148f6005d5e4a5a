"""One job from its beginning, or from where it was killed, to its result."""

import shutil
import threading
import time
from pathlib import Path
from typing import Protocol

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.rollout.peft_folder import write_peft_folder
from pubswap_client.settings import ClientSettings
from pubswap_client.state.files import write_whole
from pubswap_client.state.lock import holder, locked
from pubswap_protocol.errors import StateInUse
from pubswap_protocol.messages import WholeRun
from pubswap_protocol.verifiers import VerifierPool
from pubswap_server.server import keep_one_arena
from pubswap_simulation.coordinator import Coordinator
from pubswap_simulation.federation import Federation
from pubswap_simulation.job import Job
from pubswap_simulation.results import RESULT, Result
from pubswap_simulation.setup import cleared

WORK = "work"


class Watcher(Protocol):
    """Whoever wants to know how far a run is; called from other threads, one at a time."""

    def __call__(self, steps: int, score: float | None) -> None:
        """Steps made so far, over all clients, and the last pass@1."""
        ...


def simulate(
    job: Job,
    folder: Path,
    machine: ClientSettings,
    watch: Watcher,
    verifiers: VerifierPool,
    keep_work: bool = False,
    keep_adapters: bool = False,
) -> Result:
    """Run a job in its folder, going on from what an earlier process left there.

    Raises StateInUse if another process is at it.
    """
    keep_one_arena()  # the members are threads, and hold as much as the largest of them at a time
    folder.mkdir(parents=True, exist_ok=True)
    if (other := holder(folder)) is not None:
        raise StateInUse(f"{folder} is being simulated by another process ({other}).")
    with locked(folder):
        done = folder / RESULT
        if done.exists():
            return Result.model_validate_json(done.read_bytes())
        work = cleared(folder / WORK)
        stopwatch = _Stopwatch(work / "seconds")

        one_at_a_time = threading.Lock()

        def told() -> None:
            with one_at_a_time:
                stopwatch.keep()
                watch(federation.steps, federation.score)

        with Coordinator(work / "coordinator") as coordinator:
            federation = Federation(coordinator, job, work, machine, verifiers, told)
            with federation:
                told()
                run = federation.work()
                if keep_adapters:
                    _write_adapters(folder, federation.operator, run)
        result = Result(
            recipe=job.recipe,
            setting=job.setting,
            seed=job.settings.seed,
            members=job.members,
            client=job.client,
            run=run,
            rewards=federation.rewards(),
            seconds=stopwatch.seconds(),
        )
        write_whole(done, result.model_dump_json(indent=1).encode() + b"\n")
        if not keep_work:
            shutil.rmtree(work)
        return result


def _write_adapters(folder: Path, operator: CoordinatorClient, run: WholeRun) -> None:
    """The final and the best adapter, as PEFT folders."""
    for which in ("final", "best"):
        data = operator.global_adapter(run.id, which)
        place = folder / f"adapter-{which}"
        write_peft_folder(place, data, run.settings.lora, run.model, run.model.source)


class _Stopwatch:
    """Seconds that a run has taken, over all processes that worked at it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._earlier = float(path.read_text()) if path.exists() else 0.0
        self._started = time.monotonic()

    def seconds(self) -> float:
        """Until now."""
        return self._earlier + time.monotonic() - self._started

    def keep(self) -> None:
        """So that a process that is killed loses a step's time at most."""
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(str(self.seconds()))
        temporary.replace(self._path)
