"""Runs in processes of their own on this machine: a crash costs the others nothing."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from pydantic import ValidationError

from pubswap_simulation.job import RunSpec
from pubswap_simulation.worker import JobReport, open_log

# A run, the local steps made so far over all clients, and the last pass@1.
Progress = Callable[[RunSpec, int, float | None], None]
# A run that has ended, and why it failed, None if it is done.
Outcome = tuple[RunSpec, str | None]


def local_outcomes(
    environments: Sequence[Mapping[str, str]], on_progress: Progress, specs: Sequence[RunSpec]
) -> Generator[Outcome]:
    """What came of each run, as they end; one at a time in each of the environments.

    `on_progress` is called from any thread. A signal that stops this process stops the others; they
    go on there the next time.
    """
    idle: SimpleQueue[Mapping[str, str]] = SimpleQueue()
    for environment in environments:
        idle.put(environment)
    running: set[subprocess.Popen[str]] = set()
    lock, stopped = threading.Lock(), threading.Event()

    def carry_out(spec: RunSpec) -> str | None:
        environment = idle.get()
        try:
            with lock:
                if stopped.is_set():
                    return None
                process = started(spec, environment)
                running.add(process)
            try:
                return followed(process, spec, on_progress)
            finally:
                with lock:
                    running.discard(process)
        except (OSError, ValidationError) as error:
            return f"its process cannot be talked to: {error}"
        finally:
            idle.put(environment)

    with ThreadPoolExecutor(len(environments)) as threads:
        try:
            futures = {threads.submit(carry_out, spec): spec for spec in specs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            with lock:
                stopped.set()
                for process in running:
                    process.kill()  # every finished step is on disk
            threads.shutdown(cancel_futures=True)


def started(
    spec: RunSpec, environment: Mapping[str, str], folder: Path | None = None
) -> "subprocess.Popen[str]":
    """The process of a run, with this added to its environment, in a folder if not in this one."""
    with open_log(spec.folder) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pubswap_simulation.worker", spec.model_dump_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | dict(environment),
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches the parent alone
        )


def followed(
    process: "subprocess.Popen[str]", spec: RunSpec, on_progress: Progress | None = None
) -> str | None:
    """Why a run's process has failed, None if it has not, once it has ended."""
    report = JobReport()
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                report = JobReport.model_validate_json(line)
                if report.failed is None and on_progress is not None:
                    on_progress(spec, report.steps, report.score)
        finally:
            process.kill()
    if spec.done:
        return None
    return report.failed or f"its process ended with status {process.returncode}"
