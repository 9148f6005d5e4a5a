"""One member ten times slower than the others: rounds close at quorum and deadline, without it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pubswap_protocol.digests import digest_of
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import UnknownBlob, WrongState
from pubswap_protocol.messages import TaskKind
from pubswap_protocol.tensors.adapter import encode_adapter
from support.client.lives import Lives
from support.coordinator.coordinator import Federation, begun

FAST, SLOW = ("a", "b", "c"), "d"
FAST_SECONDS = 0.4
SLOW_SECONDS = 10 * FAST_SECONDS
DEADLINE_SECONDS = 1.0
TOLERANCE_SECONDS = 2.5  # the conductor looks each second, and a machine may be busy
SETTINGS: dict[str, Any] = {
    "clients": len(FAST) + 1,
    "method": "fedavg",
    "aggregation": {"quorum": len(FAST), "deadline_seconds": DEADLINE_SECONDS},
}


@dataclass
class Seen:
    """What members were told."""

    late: dict[int, str] = field(default_factory=dict)  # the slow one's receipts, by round
    kept: set[int] = field(default_factory=set)  # rounds whose late adapter must be stored
    lost: list[str] = field(default_factory=list)


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """A run of `count` rounds, in which a member comes after each deadline that it can.

    `off_seconds` is the largest difference between a round's closing and its deadline.
    """
    with (
        Lives(folder, {"PUBSWAP_TICK_SECONDS": "1", "PUBSWAP_KEEP_ROUNDS": "0"}) as lives,
        lives.server() as server,
    ):
        lives.begin()
        lives.wait_ready()
        federation = begun(server, rounds=count, seed=seed, **SETTINGS)
        seen, over = Seen(), threading.Event()
        with ThreadPoolExecutor(SETTINGS["clients"]) as pool:
            fast = [pool.submit(_live, federation, name, FAST_SECONDS, seen) for name in FAST]
            slow = pool.submit(_live, federation, SLOW, SLOW_SECONDS, seen)
            while not all(future.done() for future in fast):
                progress(federation.view().round - 1)
                over.wait(0.2)
            for future in (*fast, slow):
                future.result()
        return _judge(federation, seen)


def _live(federation: Federation, name: str, seconds: float, seen: Seen) -> None:
    api, run_ = federation.members[name], federation.run
    while True:
        task = api.task(run_.id, wait=2)
        if task.kind is TaskKind.FINISHED:
            return
        if task.kind is not TaskKind.TRAIN:
            continue
        time.sleep(seconds)
        adapter = federation.adapter(seed_for(run_.settings.seed, name, task.round))
        begun_in = federation.view().round
        try:
            status = federation.submit(name, task.round, adapter)
        except WrongState:
            assert name == SLOW, "a run that has ended takes no more adapters"
            continue
        if name == SLOW:
            seen.late[task.round] = status
            # An adapter that no update names yet is freed if a round ends just then.
            if federation.view().round == begun_in:
                seen.kept.add(task.round)
        elif status != "accepted":
            seen.lost.append(f"{name}'s update of round {task.round} was {status}")


def _judge(federation: Federation, seen: Seen) -> dict[str, Any]:
    first: dict[int, datetime] = {}
    off: list[float] = []
    after = 0
    lost = list(seen.lost)
    while events := federation.operator.events(federation.run.id, after).events:
        after = events[-1].id
        for event in events:
            if event.kind == "update" and not event.details["late"]:
                first.setdefault(event.details["round"], event.at)
            if event.kind == "updates closed":
                passed = event.at - first[event.details["round"]]
                off.append(abs(passed.total_seconds() - DEADLINE_SECONDS))
    view = federation.view()
    lost += [f"round {r}: {status}" for r, status in seen.late.items() if status != "late, unused"]
    lost += [f"round closed {seconds:.2f} s off" for seconds in off if seconds > TOLERANCE_SECONDS]
    lost += [
        f"round {summary.round}: mean of {summary.updates}"
        for summary in view.rounds[1:]
        if summary.updates != len(FAST)
    ]
    if not seen.late:
        lost.append("the slow member never was late")
    lost += [
        f"round {r}: the late adapter is not stored" for r in seen.kept if not _kept(federation, r)
    ]
    return {
        "tried": len(off),
        "lost": len(lost),
        "late_updates": len(seen.late),
        "off_seconds": max(off, default=0.0),
        "broken": lost[:20],
    }


def _kept(federation: Federation, round_: int) -> bool:
    """Whether the slow member's adapter of a round is still there."""
    adapter = federation.adapter(seed_for(federation.run.settings.seed, SLOW, round_))
    digest = digest_of(encode_adapter(federation.run.model.layout, adapter))
    try:
        federation.members[SLOW].blob(federation.run.id, digest)
    except UnknownBlob:
        return False
    return True
