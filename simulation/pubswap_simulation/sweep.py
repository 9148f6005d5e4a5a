"""Many jobs in processes of their own: a crash costs nobody else anything."""

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from pubswap_simulation.display import Display
from pubswap_simulation.logs import LOG
from pubswap_simulation.order import Order
from pubswap_simulation.worker import Report


@dataclass
class Sweep:
    """Orders that are carried out by one process at a time in each of the environments."""

    orders: Sequence[Order]
    environments: Sequence[Mapping[str, str]]
    display: Display
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

    def _carried_out(self, process: "subprocess.Popen[str]", order: Order) -> str | None:
        """Why the order was not carried out; None if it was."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(order.model_dump_json() + "\n")
            process.stdin.flush()
            for line in process.stdout:
                report = Report.model_validate_json(line)
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
