"""Work in threads that are daemons: a client that is told to stop waits for no long answer."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


def in_thread(work: Callable[[], R], name: str) -> Future[R]:
    """The work's result, once it is there."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def in_threads(call: Callable[[A], R], arguments: Sequence[A], threads: int) -> list[R]:
    """The results in order; on the first error, which is raised, what has not begun is left out."""
    waiting: SimpleQueue[int] = SimpleQueue()
    results: dict[int, R] = {}
    ended = threading.Event()
    for index in range(len(arguments)):
        waiting.put(index)

    def work() -> None:
        with suppress(Empty):
            while not ended.is_set():
                index = waiting.get_nowait()
                results[index] = call(arguments[index])

    try:
        for done in as_completed(
            [in_thread(work, "vllm") for _ in range(min(threads, len(arguments)))]
        ):
            done.result()
    finally:
        ended.set()
    return [results[index] for index in range(len(arguments))]
