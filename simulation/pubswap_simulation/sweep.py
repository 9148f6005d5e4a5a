"""Many jobs in processes of their own: a crash costs nobody else anything."""

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pydantic import ValidationError
from rich.console import Console

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.display import SweepDisplay, run_table, sweep_table
from pubswap_simulation.order import RunSpec
from pubswap_simulation.worker import LOG, JobReport, log_to, open_log


@dataclass
class Sweep:
    """Orders that are carried out by one process at a time in each of the environments."""

    orders: Sequence[RunSpec]
    environments: Sequence[Mapping[str, str]]
    display: SweepDisplay
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._left = deque(order for order in self.orders if not order.done)
        self._processes: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self) -> None:
        """All that is not done yet; what fails is noted in `failed`, by the folder's name.

        A signal that stops this process stops the others; they go on there the next time.
        """
        for order in self.orders:
            if order.done:
                self.display.ended(order, "was done")
        threads = [
            threading.Thread(target=self._work, args=(environment,))
            for environment in self.environments[: len(self._left)]
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self._stop()
            for thread in threads:
                thread.join()

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.kill()  # every finished step is on disk

    def _work(self, environment: Mapping[str, str]) -> None:
        """One process after another, each until it fails, until nothing is left."""
        while self._left and not self._stopped:
            with _Process(environment) as process:
                with self._lock:
                    if self._stopped:
                        return
                    self._processes.add(process)
                self._feed(process)
                with self._lock:
                    self._processes.discard(process)

    def _feed(self, process: "subprocess.Popen[str]") -> None:
        while self._left and not self._stopped:
            try:
                order = self._left.popleft()
            except IndexError:  # another thread took the last one
                return
            failure = self._carried_out(process, order)
            if self._stopped:
                return
            if failure is None:
                self.display.ended(order, "done")
                continue
            self.failed[order.key] = failure
            self.display.ended(order, f"failed: {failure} (log: {order.folder / LOG})")
            return

    def _carried_out(self, process: "subprocess.Popen[str]", order: RunSpec) -> str | None:
        """Why the order was not carried out; None if it was."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(order.model_dump_json() + "\n")
            process.stdin.flush()
            for line in process.stdout:
                report = JobReport.model_validate_json(line)
                if report.done or report.failed:
                    return report.failed
                self.display.moved(order, report.steps, report.score)
        except (OSError, ValidationError) as error:
            return f"its process cannot be talked to: {error}"
        return f"its process ended with status {process.wait()}"


class _Process:
    """A worker that is gone when the block ends."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = os.environ | dict(environment)

    def __enter__(self) -> "subprocess.Popen[str]":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pubswap_simulation.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def run_orders(
    orders: Sequence[RunSpec], console: Console, jobs: int | None, devices: str | None
) -> int:
    """Carry out all that is not done yet, and say what came of it; returns the exit status."""
    if len(orders) == 1 and devices is None:
        return _run_one(orders[0], console)
    names = devices.split(",") if devices else []
    count = jobs or len(names) or 1
    orders = [_with_threads(order, count) for order in orders]
    # libgomp reads it once, before torch is told how many threads there are.
    threads = {"OMP_NUM_THREADS": str(orders[0].options["threads"])}
    environments = [place | threads for place in places(count, names)]
    with SweepDisplay(console, len(orders)) as display:
        sweep = Sweep(orders, environments, display)
        sweep.run()
    console.print(sweep_table(orders, sweep.failed))
    for key, reason in sweep.failed.items():
        console.print(f"[red]failed[/red] {key}: {reason}", soft_wrap=True)
    if sweep.failed:
        console.print("The same command tries these again, from where they were.")
    return 1 if sweep.failed else 0


def _run_one(order: RunSpec, console: Console) -> int:
    console.print(f"run {order.folder}", soft_wrap=True, highlight=False)
    with (
        open_log(order.folder) as log,
        SweepDisplay(console, 1) as display,
        order.verifiers() as verifiers,
    ):
        log_to(log)
        result = order.carry_out(partial(display.moved, order), verifiers)
    console.print(run_table(result))
    console.print(
        f"base {result.base:.3f}  final {result.final:.3f}  best {result.best:.3f}  "
        f"in {result.seconds:.0f} s, {result.seconds / order.job.steps:.2f} s a step; "
        f"log in {order.folder / LOG}",
        soft_wrap=True,
        highlight=False,
    )
    return 0


def places(count: int, devices: Sequence[str]) -> list[dict[str, str]]:
    """The environment of each process: its GPU is the only one that it sees."""
    found: list[dict[str, str]] = []
    for number in range(count):
        if not devices:
            found.append({})
            continue
        name = devices[number % len(devices)].strip()
        kind, _, index = name.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
            raise InvalidSettings(f"--devices {name}: give them as cuda:0,cuda:1.")
        found.append({"CUDA_VISIBLE_DEVICES": _visible(index) if kind == "cuda" else ""})
    return found


def _visible(index: str) -> str:
    """The GPU of this number among those that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not allowed or not index:
        return index or allowed or "0"
    names = allowed.split(",")
    if int(index) >= len(names):
        raise InvalidSettings(f"--devices cuda:{index}: CUDA_VISIBLE_DEVICES allows {allowed}.")
    return names[int(index)]


def _with_threads(order: RunSpec, processes: int) -> RunSpec:
    """With its share of the CPU's threads, unless it is said how many."""
    share = max(1, len(os.sched_getaffinity(0)) // processes)
    return order.model_copy(update={"options": {"threads": share, **order.options}})
