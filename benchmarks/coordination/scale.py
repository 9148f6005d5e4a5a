"""How the coordinator's CPU seconds grow with the members of a round, and with a run's rounds.

Members hand in adapters of 1 MB, eight at a time, each with its own client, and then wait for the
next round in a long poll of their own. CPU seconds are the server process's.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any

import httpx
import psutil
from sqlalchemy import create_engine

from coordination.serving import MeasuredCoordinator, Seat, opened, seated, serving, start
from coordination.telling import Tell
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_protocol import paths
from pubswap_protocol.messages import Progress, RunView, SubmitUpdate, UpdateMetrics
from pubswap_protocol.tensors.adapter import initial_file

MEMBERS, QUICK_MEMBERS = (64, 256, 1000), (4, 8)
ROUNDS, QUICK_ROUNDS = (100, 1000, 10_000), (100, 200)
CONNECTIONS = 8
MEGABYTES = 1
WAIT_SECONDS = 1800
LOOKS = 2000  # rounds to read in all, so that a run with few rounds is read often
NAMES = ("client-0000", "client-0001", "client-0002", "client-0003")


def measure(quick: bool, scratch: Path, tell: Tell) -> dict[str, Any]:
    """CPU seconds of a round, and of reading a run with all its rounds."""
    os.environ["PUBSWAP_MAX_WAIT_SECONDS"] = str(WAIT_SECONDS)
    try:
        members = {
            str(n): _round(n, scratch / f"scale-{n}", tell)
            for n in (QUICK_MEMBERS if quick else MEMBERS)
        }
        return {"members": members, "rounds": _shows(quick, scratch / "scale-rounds", tell)}
    finally:
        del os.environ["PUBSWAP_MAX_WAIT_SECONDS"]


def _round(clients: int, folder: Path, tell: Tell) -> dict[str, float]:
    with serving(folder) as coordinator:
        run = opened(coordinator, MEGABYTES, clients=clients, rounds=2)
        tell(f"{clients} members enrol")
        seats = seated(coordinator, run)
        start(coordinator, run)
        tell(f"{clients} members hand in {MEGABYTES} MB each")
        process, began = psutil.Process(coordinator.pid), time.monotonic()
        cpu_at_start = _cpu(process)
        _one_round(seats, run)
        measured = {
            "cpu_seconds": _cpu(process) - cpu_at_start,
            "seconds": time.monotonic() - began,
        }
    rmtree(folder)
    tell(f"{clients} members: {measured['cpu_seconds']:.2f} s of CPU")
    return measured


def _one_round(seats: Sequence[Seat], run: RunView) -> None:
    """Have all members hand in, and wait until the next round begins."""
    polls = _Polls(seats[0].url)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        done = [pool.submit(_hand_in, seat, run, n, polls) for n, seat in enumerate(seats)]
        for future in done:
            future.result()
    assert polls.answers() == [2] * len(seats)


def _hand_in(seat: Seat, run: RunView, number: int, polls: "_Polls") -> None:
    data = initial_file(run.model.layout, number)
    with CoordinatorClient(seat.url, seat.token, Backoff(tries=5)) as api:
        task = api.task(run.id, 0)
        api.blob(run.id, str(task.adapter))
        api.heartbeat(run.id, Progress(round=1, step=1, steps=1))
        digest = api.put_blob(run.id, b"".join(data))
        metrics = UpdateMetrics(examples=1, steps=1)
        api.submit_update(run.id, 1, SubmitUpdate(adapter=digest, metrics=metrics))
    polls.begin(seat)


class _Polls:
    """Long polls on an event loop in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._waiting: list[Any] = []

    def begin(self, seat: Seat) -> None:
        """Have a member wait for its next task."""
        self._waiting.append(asyncio.run_coroutine_threadsafe(self._ask(seat), self._loop))

    async def _ask(self, seat: Seat) -> int:
        headers = {"Authorization": f"Bearer {seat.token}"}
        async with httpx.AsyncClient(timeout=WAIT_SECONDS, verify=False) as http:
            path = self._url + paths.TASK.format(run=seat.run)
            reply = await http.get(path, params={"wait": WAIT_SECONDS}, headers=headers)
            return int(reply.json()["round"])

    def answers(self) -> list[int]:
        """The round of each member's task."""
        rounds = [future.result(WAIT_SECONDS) for future in self._waiting]
        self._loop.call_soon_threadsafe(self._loop.stop)
        return rounds


def _shows(quick: bool, folder: Path, tell: Tell) -> dict[str, dict[str, float]]:
    from support.coordinator.long_runs import lengthen

    by_rounds = {}
    with serving(folder) as coordinator:
        for rounds in QUICK_ROUNDS if quick else ROUNDS:
            run = opened(coordinator, MEGABYTES, clients=len(NAMES), rounds=rounds + 1)
            seated(coordinator, run)
            start(coordinator, run)
            engine = create_engine(f"sqlite:///{folder / 'data' / 'pubswap.sqlite'}")
            lengthen(engine, run.id, NAMES, rounds)
            engine.dispose()
            times = max(1, LOOKS // rounds)
            by_rounds[str(rounds)] = {
                "show_cpu_seconds": _looks(
                    coordinator, times, lambda run=run: _show(coordinator, run)
                ),
                "whole_cpu_seconds": _looks(
                    coordinator, times, lambda run=run: _whole(coordinator, run)
                ),
                "pause_cpu_seconds": _looks(
                    coordinator, times, lambda run=run: _pause(coordinator, run)
                ),
            }
            tell(f"{rounds} rounds: {by_rounds[str(rounds)]}")
    rmtree(folder)
    return by_rounds


def _show(coordinator: MeasuredCoordinator, run: RunView) -> None:
    """Make the requests of `run show`."""
    view = coordinator.api.run(run.id)
    list(coordinator.api.rounds(run.id, view.round - 50))


def _whole(coordinator: MeasuredCoordinator, run: RunView) -> None:
    """Make the request of `run show --json`."""
    coordinator.api.whole_run(run.id)


def _pause(coordinator: MeasuredCoordinator, run: RunView) -> None:
    coordinator.api.move_run(run.id, paths.RUN_PAUSE)


def _looks(coordinator: MeasuredCoordinator, times: int, look: Callable[[], None]) -> float:
    """CPU seconds of one `look`, of the server and this client together."""
    process = psutil.Process(coordinator.pid)
    look()
    cpu_at_start = _cpu(process) + time.process_time()
    for _ in range(times):
        look()
    return (_cpu(process) + time.process_time() - cpu_at_start) / times


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def figures(details: dict[str, Any]) -> dict[str, float]:
    """Measured growth over linear growth, the worst from one size to the next."""
    members = {int(n): one["cpu_seconds"] for n, one in details["members"].items()}
    return {
        "scale_members_growth": growth(members),
        "scale_rounds_growth": max(
            growth({int(n): one[kind] for n, one in details["rounds"].items()})
            for kind in ("show_cpu_seconds", "whole_cpu_seconds", "pause_cpu_seconds")
        ),
    }


def growth(seconds: dict[int, float]) -> float:
    """The worst growth from one size to the next, relative to linear growth."""
    return max(
        (seconds[larger] / seconds[smaller]) / (larger / smaller)
        for smaller, larger in pairwise(sorted(seconds))
    )
