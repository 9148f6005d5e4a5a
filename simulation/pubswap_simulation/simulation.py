"""Run one job to its result, from its beginning or from where it was killed."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.state.lock import holder, locked
from pubswap_protocol.errors import StateInUse
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import WholeRun
from pubswap_protocol.tensors.peft_folder import write_peft_folder
from pubswap_protocol.verifiers.plugin import working_trees
from pubswap_simulation.coordinator import Coordinator
from pubswap_simulation.federation import Federation, resumable_folder
from pubswap_simulation.job import JobReport, RunSpec
from pubswap_simulation.results import RESULT, Result, read_result


def simulate(spec: RunSpec, on_progress: Callable[[JobReport], None]) -> Result:
    """Run a job in its folder, continuing from what an earlier process left there.

    `on_progress` is called from other threads, one at a time. Raises StateInUse if another process
    is running it.
    """
    job, folder = spec.job, spec.folder
    folder.mkdir(parents=True, exist_ok=True)
    if (other := holder(folder)) is not None:
        raise StateInUse(f"{folder} is being simulated by another process ({other}).")
    with locked(folder), working_trees():
        done = folder / RESULT
        if done.exists():
            return read_result(folder)
        work = resumable_folder(folder / "work")
        one_at_a_time = threading.Lock()
        seconds_file = work / "seconds"  # over all processes that worked on it
        earlier = float(seconds_file.read_text()) if seconds_file.exists() else 0.0
        started = time.monotonic()

        def progress() -> None:
            with one_at_a_time:
                # Written at each step, so that a killed process loses one step's time at most.
                write_whole(seconds_file, str(earlier + time.monotonic() - started).encode())
                on_progress(federation.progress())

        with Coordinator(work / "coordinator") as coordinator:
            federation = Federation(coordinator, job, work, spec.client_settings(), progress)
            with federation:
                run = federation.work()
                if spec.keep_adapters:
                    _write_adapters(folder, federation.operator, run)
        result = Result(
            recipe=job.recipe,
            setting=job.setting,
            seed=job.settings.seed,
            members=job.members,
            client=job.client,
            run=run,
            rewards=federation.rewards(),
            topics={name: job.topics(name) for name in job.private},
            donated=federation.donated(),
            seconds=earlier + time.monotonic() - started,
            code=commit_of(Path(__file__).parent),
        )
        write_whole(done, result.model_dump_json().encode() + b"\n")
        if not spec.keep_work:
            shutil.rmtree(work)
        return result


def commit_of(source: Path) -> str | None:
    """The commit of a folder in a repository, with -dirty if the work tree differs from it.

    None if there is no git, or the folder is not tracked (an installed package's).
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(source), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if git("ls-files", "."):
            return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        pass
    return None


def _write_adapters(folder: Path, operator: CoordinatorClient, run: WholeRun) -> None:
    """The final and the best adapter, as PEFT folders."""
    for which in ("final", "best"):
        data = operator.global_adapter(run.id, which)
        target = folder / f"adapter-{which}"
        write_peft_folder(target, data, run.settings.lora, run.model, run.model.source)
