"""Clients as real processes that wait at a gate, so that their preparation is not timed."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, Self

# Clients are forked, in milliseconds, from a process that has done all the script's imports.
PRELOAD = ["coordinator"]
STOP_SECONDS = 10.0


class Client(Protocol):
    """One client of any service."""

    def prepare(self, round_: int) -> None:
        """Make the data to send in a round."""
        ...

    def go(self) -> dict[str, Any]:
        """Do the timed work; returns the client's own measurements."""
        ...

    def check(self) -> float:
        """The error of what it received."""
        ...

    def close(self) -> None:
        """Close its connections."""
        ...


@dataclass(frozen=True, slots=True)
class Went:
    """When the gate opened, and for each client, when it was through and what it measured.

    Times are of the machine-wide monotonic clock.
    """

    opened: float
    through: list[float]
    measured: list[dict[str, Any]]

    @property
    def seconds(self) -> float:
        """From the gate's opening until the last client was through."""
        return max(self.through) - self.opened


class MeasuredFleet:
    """Client processes, which end with the block."""

    def __init__(self, makers: list[Callable[[], Client]]) -> None:
        """Start one process for each maker, which is called in it and must be picklable."""
        self._makers = makers
        self._ends: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        for make in self._makers:
            parent_end, child_end = context.Pipe()
            process = context.Process(target=_serve, args=(child_end, make), daemon=True)
            process.start()
            child_end.close()
            self._ends.append(parent_end)
            self._processes.append(process)
        self._answers()
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()

    def prepare(self, round_: int) -> None:
        """Have all clients prepare a round."""
        self._tell("prepare", round_)
        self._answers()

    def go(self, clients: range | None = None) -> None:
        """Open the gate for all clients, or those in `clients`; `wait` returns the outcome."""
        self._tell("go", clients=clients)

    def wait(self, opened: float, clients: range | None = None) -> Went:
        """The outcome of `go`, once all its clients are through."""
        answers = self._answers(clients)
        return Went(opened, [at for at, _ in answers], [measured for _, measured in answers])

    def race(self, round_: int) -> Went:
        """Prepare a round, and time it."""
        self.prepare(round_)
        opened = time.monotonic()
        self.go()
        return self.wait(opened)

    def check(self) -> float:
        """The largest error that a client found in what it received."""
        self._tell("check")
        return max(self._answers())

    def _tell(self, what: str, *arguments: Any, clients: range | None = None) -> None:
        for end in self._at(clients):
            end.send((what, *arguments))

    def _answers(self, clients: range | None = None) -> list[Any]:
        answers = [end.recv() for end in self._at(clients)]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _at(self, clients: range | None) -> list[Connection]:
        return self._ends if clients is None else [self._ends[index] for index in clients]


def _serve(end: Connection, make: Callable[[], Client]) -> None:
    """A client's process: carry out one order at a time until the other end is closed."""
    try:
        client = make()
    except Exception as error:
        end.send(error)
        return
    end.send(None)
    while True:
        try:
            what, *arguments = end.recv()
        except EOFError:
            client.close()
            return
        try:
            end.send(_obey(client, what, arguments))
        except Exception as error:
            end.send(RuntimeError(f"a client failed: {type(error).__name__}: {error}"))


def _obey(client: Client, what: str, arguments: list[Any]) -> Any:
    if what == "go":
        measured = client.go()
        return time.monotonic(), measured
    return client.prepare(*arguments) if what == "prepare" else client.check()
