"""Work in daemon threads, so that a client told to stop does not wait for a long reply."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


def _in_thread(work: Callable[[], R]) -> Future[R]:
    """Run the work in a daemon thread; returns a future of its result."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="vllm", daemon=True).start()
    return future


def in_threads(call: Callable[[A], R], arguments: Sequence[A], threads: int) -> list[R]:
    """Run the calls in threads; returns the results in order.

    Raises the first error; calls that have not begun by then are left out.
    """
    waiting = enumerate(arguments)  # advancing it is atomic, so no argument is taken twice
    results: dict[int, R] = {}
    ended = threading.Event()

    def work() -> None:
        for index, argument in waiting:
            if ended.is_set():
                return
            results[index] = call(argument)

    try:
        for done in as_completed([_in_thread(work) for _ in range(min(threads, len(arguments)))]):
            done.result()
    finally:
        ended.set()
    return [results[index] for index in range(len(arguments))]
