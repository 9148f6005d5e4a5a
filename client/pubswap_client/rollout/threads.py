"""Work in threads that are daemons: a client that is told to stop waits for no long answer."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
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
    waiting = enumerate(arguments)  # a step of it is one of the interpreter's: nothing comes twice
    results: dict[int, R] = {}
    ended = threading.Event()

    def work() -> None:
        for index, argument in waiting:
            if ended.is_set():
                return
            results[index] = call(argument)

    try:
        for done in as_completed(
            [in_thread(work, "vllm") for _ in range(min(threads, len(arguments)))]
        ):
            done.result()
    finally:
        ended.set()
    return [results[index] for index in range(len(arguments))]
