"""Many runs, each in a process of its own: a crash costs the others nothing."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from pydantic import ValidationError
from rich.console import Console

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.display import SweepDisplay, run_table, sweep_table
from pubswap_simulation.job import RunSpec
from pubswap_simulation.simulation import simulate
from pubswap_simulation.worker import LOG, JobReport, log_to, open_log


class Display(Protocol):
    """What shows runs as they go on; called from any thread."""

    def update(self, spec: RunSpec, steps: int, score: float | None) -> None:
        """Show the local steps made so far, over all clients, and the last pass@1."""

    def finish(self, spec: RunSpec, outcome: str) -> None:
        """Show what came of a run."""


class SweepRunner:
    """Runs, one at a time in each of the environments."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        environments: Sequence[Mapping[str, str]],
        display: Display,
    ) -> None:
        self._specs = specs
        self._display = display
        self._threads = len(environments)
        self._idle: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for environment in environments:
            self._idle.put(environment)
        self._processes: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self.failed: dict[str, str] = {}

    def run(self) -> None:
        """Carry out all that is not done yet; failures are in `failed`, by the run's key.

        A signal that stops this process stops the others; they go on there the next time.
        """
        for spec in self._specs:
            spec.folder.mkdir(parents=True, exist_ok=True)  # a report sees what is not done yet
            if spec.done:
                self._display.finish(spec, "was done")
        with ThreadPoolExecutor(self._threads) as threads:
            todo = [spec for spec in self._specs if not spec.done]
            futures = [threads.submit(self._carry_out, spec) for spec in todo]
            try:
                for future in futures:
                    future.result()
            finally:
                self._stop()
                threads.shutdown(cancel_futures=True)

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.kill()  # every finished step is on disk

    def _carry_out(self, spec: RunSpec) -> None:
        environment = self._idle.get()
        try:
            failure = self._process(spec, environment)
        except (OSError, ValidationError) as error:
            failure = f"its process cannot be talked to: {error}"
        finally:
            self._idle.put(environment)
        if self._stopped:
            return
        if failure is None:
            self._display.finish(spec, "done")
        else:
            self.failed[spec.key] = failure
            self._display.finish(spec, f"failed: {failure} (log: {spec.folder / LOG})")

    def _process(self, spec: RunSpec, environment: Mapping[str, str]) -> str | None:
        """Why the run's process has failed, None if it has not."""
        report = JobReport()
        with self._lock:
            if self._stopped:
                return None
            process = _started(spec, environment)
            self._processes.add(process)
        with process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    report = JobReport.model_validate_json(line)
                    if report.failed is None:
                        self._display.update(spec, report.steps, report.score)
            finally:
                process.kill()
                with self._lock:
                    self._processes.discard(process)
        if spec.done:
            return None
        return report.failed or f"its process ended with status {process.returncode}"


def _started(spec: RunSpec, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    with open_log(spec.folder) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pubswap_simulation.worker", spec.model_dump_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | dict(environment),
            start_new_session=True,  # Ctrl-C reaches the parent alone
        )


def run_all(
    specs: Sequence[RunSpec], console: Console, jobs: int | None, devices: str | None
) -> int:
    """Carry out all that is not done yet, and say what came of it; returns the exit status."""
    if len(specs) == 1 and devices is None:
        return _run_one(specs[0], console)
    names = devices.split(",") if devices else []
    count = jobs or len(names) or 1
    specs = [_with_threads(spec, count) for spec in specs]
    # libgomp reads it once, before torch is told how many threads there are.
    threads = {"OMP_NUM_THREADS": str(specs[0].options["threads"])}
    environments = [visible | threads for visible in visible_devices(count, names)]
    with SweepDisplay(console, len(specs)) as display:
        sweep = SweepRunner(specs, environments, display)
        sweep.run()
    console.print(sweep_table(specs, sweep.failed))
    for key, reason in sweep.failed.items():
        console.print(f"[red]failed[/red] {key}: {reason}", soft_wrap=True)
    if sweep.failed:
        console.print("The same command tries these again, from where they were.")
    return 1 if sweep.failed else 0


def _run_one(spec: RunSpec, console: Console) -> int:
    console.print(f"run {spec.folder}", soft_wrap=True, highlight=False)
    with open_log(spec.folder) as log, SweepDisplay(console, 1) as display:
        log_to(log)
        result = simulate(spec, partial(display.update, spec))
    console.print(run_table(result))
    console.print(
        f"base {result.base:.3f}  final {result.final:.3f}  best {result.best:.3f}  "
        f"in {result.seconds:.0f} s, {result.seconds / spec.job.steps:.2f} s a step; "
        f"log in {spec.folder / LOG}",
        soft_wrap=True,
        highlight=False,
    )
    return 0


def visible_devices(count: int, devices: Sequence[str]) -> list[dict[str, str]]:
    """The environment of each process: its GPU is the only one that it sees."""
    environments: list[dict[str, str]] = []
    for number in range(count):
        if not devices:
            environments.append({})
            continue
        name = devices[number % len(devices)].strip()
        kind, _, index = name.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
            raise InvalidSettings(f"--devices {name}: give them as cuda:0,cuda:1.")
        environments.append({"CUDA_VISIBLE_DEVICES": _visible(index) if kind == "cuda" else ""})
    return environments


def _visible(index: str) -> str:
    """The GPU of this number among those that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not allowed or not index:
        return index or allowed or "0"
    names = allowed.split(",")
    if int(index) >= len(names):
        raise InvalidSettings(f"--devices cuda:{index}: CUDA_VISIBLE_DEVICES allows {allowed}.")
    return names[int(index)]


def _with_threads(spec: RunSpec, processes: int) -> RunSpec:
    """The run with its share of the CPU's threads, unless their number is given."""
    share = max(1, len(os.sched_getaffinity(0)) // processes)
    return spec.model_copy(update={"options": {"threads": share, **spec.options}})
