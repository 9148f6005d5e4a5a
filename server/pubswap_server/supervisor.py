"""`pubswap serve --workers N`: N processes on one socket, each replaced when it dies."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from datetime import datetime
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType

import structlog

from pubswap_server.cli import run_server
from pubswap_server.clock import process_clock, steady
from pubswap_server.logs import configure_logs
from pubswap_server.settings import ServerSettings

log = structlog.get_logger(__name__)

STOP_SECONDS = 30.0
# A worker that cannot even start is not tried in a tight loop.
RESTART_SECONDS = 1.0


class Supervisor:
    """Starts the workers and looks after them; it serves nothing itself."""

    def __init__(self, settings: ServerSettings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        self._workers: dict[int, SpawnProcess] = {}
        self._stop_by: float | None = None

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, and return when all workers have ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for index in range(self._settings.workers):
            self._start(index)
        while self._workers:
            wait([worker.sentinel for worker in self._workers.values()], timeout=0.5)
            self._replace_the_dead()
            if self._stop_by is not None and time.monotonic() > self._stop_by:
                for worker in self._workers.values():
                    worker.kill()

    def _start(self, index: int) -> None:
        clock = process_clock()
        arguments = (self._settings, self._listening, (clock.now(), steady()))
        # Not forked: a copy of this process would share its connections and locks.
        spawn = multiprocessing.get_context("spawn")
        worker = spawn.Process(target=work, args=arguments, name=f"worker-{index}")
        worker.start()
        self._workers[index] = worker
        # The signal may have come before the worker was known.
        if self._stop_by is not None:
            worker.terminate()

    def _replace_the_dead(self) -> None:
        for index, worker in list(self._workers.items()):
            if worker.is_alive():
                continue
            del self._workers[index]
            if self._stop_by is None:
                log.error("worker died", worker=index, exit_code=worker.exitcode)
                time.sleep(RESTART_SECONDS)
            # Asked again, for a signal may have come while it slept.
            if self._stop_by is None:
                self._start(index)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_by = time.monotonic() + STOP_SECONDS
        for worker in list(self._workers.values()):
            worker.terminate()


def work(settings: ServerSettings, listening: socket.socket, clock: tuple[datetime, float]) -> None:
    """One worker: a replica which ends with its parent."""
    configure_logs(settings)
    process_clock().set(*clock)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run_server(settings, listening)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
