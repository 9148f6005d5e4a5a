"""Runs in processes of their own on this machine, so that a crash does not affect the others."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from pydantic import ValidationError

from pubswap_simulation.job import JobReport, RunSpec
from pubswap_simulation.worker import open_log

Progress = Callable[[RunSpec, JobReport], None]
# A run that has ended, and why it failed, or None if it is done.
Outcome = tuple[RunSpec, str | None]

# A job's members are threads; with a heap each, each would keep its peak memory.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}


def local_outcomes(
    environments: Sequence[Mapping[str, str]], on_progress: Progress, specs: Sequence[RunSpec]
) -> Generator[Outcome]:
    """Yield each run's outcome as it ends; each environment carries out one run at a time.

    `on_progress` is called from any thread. A signal that stops this process stops the runs, which
    continue from there the next time.
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
                on_progress(spec, JobReport(doing="starting"))
                process = started(spec, environment)
                running.add(process)
            try:
                return followed(process, spec, on_progress)
            finally:
                with lock:
                    running.discard(process)
        except (OSError, ValidationError) as error:
            return f"communication with its process failed: {error}"
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
    """Start a run's process in `folder` or the current one, with `environment` added to ours."""
    with open_log(spec.folder) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pubswap_simulation.worker", spec.model_dump_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | ONE_HEAP | dict(environment),
            cwd=folder,
            start_new_session=True,  # Ctrl-C reaches the parent alone
        )


def followed(
    process: "subprocess.Popen[str]", spec: RunSpec, on_progress: Progress | None = None
) -> str | None:
    """Follow a run's process to its end; returns why it failed, or None."""
    report = JobReport()
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                report = JobReport.model_validate_json(line)
                if report.failed is None and on_progress is not None:
                    on_progress(spec, report)
        finally:
            process.kill()
    if spec.done:
        return None
    return report.failed or f"its process ended with status {process.returncode}"
