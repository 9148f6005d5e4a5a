"""SIGKILLs of the coordinator at named points and at random times, while members work.

Every receipt must hold after it, and every adapter must be the undisturbed run's.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Self

from support.client.lives import Lives
from support.coordinator.coordinator import Federation, begun
from support.coordinator.fleet import Fleet, adapters_of, counted_wrong

SETTINGS: dict[str, Any] = {"rounds": 3, "local_steps": 4, "seed": 5}
CLIENTS = (2, 3, 4)
RANDOM = "at a random time"
RANDOM_SHARE = 0.25
LONGEST_RANDOM_SECONDS = 0.8
POINT_SECONDS = 3.0  # a point that has not come by then is given up: the next life has another
EPISODE_SECONDS = 120.0

KEEPING = ("before file synced", "file synced", "renamed", "folder synced")
COMMIT = ("before commit", "committed")
# Where the promise could break; an undisturbed run must pass each, or a point has lost its place.
REQUIRED = frozenset(
    [f"open upload: {what}" for what in (*COMMIT, "before reply")]
    + [f"finish upload: {what}" for what in (*KEEPING, *COMMIT, "before reply")]
    + [f"update: {what}" for what in (*COMMIT, "before reply")]
    + [f"responses: {what}" for what in (*KEEPING, "before reply")]
    + [f"responses: exchange_began, {what}" for what in COMMIT]
    + [f"conductor: {what}" for what in ("blob half made", *KEEPING, "blob written")]
    + [
        f"conductor: {move}, {what}"
        for move in ("exchange_ended", "updates_closed", "aggregated")
        for what in COMMIT
    ]
)


@dataclass
class KillTally:
    """What became of the kills."""

    kills: dict[str, int] = field(default_factory=dict)
    receipts: int = 0
    lost: list[str] = field(default_factory=list)
    adapters: int = 0
    differing: int = 0

    @property
    def tried(self) -> int:
        """All kills."""
        return sum(self.kills.values())

    def killed(self, where: str) -> None:
        """Count a kill."""
        self.kills[where] = self.kills.get(where, 0) + 1

    def result(self) -> dict[str, Any]:
        """The chaos's entry in the table."""
        return {
            "tried": self.tried,
            "lost": len(self.lost) + self.differing,
            "receipts": self.receipts,
            "points": len(set(self.kills) - {RANDOM}),
            "adapters": self.adapters,
            "adapters_differing": self.differing,
            "broken": self.lost[:20],
        }


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Kill the coordinator `count` times over as many small runs as it takes.

    Returns how many were `tried`, the receipts and adapters that were `lost`, and how many of
    either were looked at.
    """
    tally = KillTally()
    with Lives(folder) as lives:
        expected = {clients: _undisturbed(lives, clients) for clients in CLIENTS}
        passed = set(lives.trace.read_text().splitlines())
        assert passed >= REQUIRED, f"points that nothing passes: {sorted(REQUIRED - passed)}"
        deaths = _deaths(sorted(passed), seed)
        number = 0
        while tally.tried < count:
            clients = CLIENTS[number % len(CLIENTS)]
            _episode(lives, tally, clients, expected[clients], deaths, count, progress)
            number += 1
        tally.lost += lives.failures()
    return tally.result()


def _deaths(points: list[str], seed: int) -> Iterator[tuple[str, float]]:
    """Where the lives end, for ever: all points in turn, shuffled, and random times between."""
    random = Random(seed)
    while True:
        for point in random.sample(points, len(points)):
            while random.random() < RANDOM_SHARE:
                yield RANDOM, random.uniform(0, LONGEST_RANDOM_SECONDS)
            yield point, 0.0


def _undisturbed(lives: Lives, clients: int) -> list[str | None]:
    lives.begin()
    with lives.server() as server:
        lives.wait_ready()
        fleet = Fleet(begun(server, clients=clients, **SETTINGS))
        fleet.start()
        fleet.wait(EPISODE_SECONDS)
        adapters = adapters_of(fleet.federation.view())
        assert not counted_wrong(fleet.federation)
        assert not fleet.ledger.broken(fleet.federation)
    lives.kill()
    assert len(set(adapters)) == SETTINGS["rounds"] + 1, "the rounds' adapters do not differ"
    return adapters


def _episode(
    lives: Lives,
    tally: KillTally,
    clients: int,
    expected: list[str | None],
    deaths: Iterator[tuple[str, float]],
    count: int,
    progress: Callable[[int], None],
) -> None:
    """One run, from its making in an unharmed life to its end."""
    with lives.server() as server:
        lives.begin()
        lives.wait_ready()
        fleet = Fleet(begun(server, clients=clients, **SETTINGS))
        with _Auditor(fleet) as auditor:
            fleet.start()
            deadline = time.monotonic() + EPISODE_SECONDS
            while not fleet.done and tally.tried < count:
                lives.kill()
                assert time.monotonic() < deadline, "the run does not come to its end"
                _one_life(lives, tally, fleet, *next(deaths))
                auditor.wake()
                progress(tally.tried)
            lives.kill()
            lives.begin()
            fleet.wait(EPISODE_SECONDS)
        tally.receipts += auditor.asked
        tally.lost += auditor.broken
        _judge(fleet.federation, tally, expected)
        lives.kill()


def _one_life(lives: Lives, tally: KillTally, fleet: Fleet, point: str, seconds: float) -> None:
    """A life up to its death, or to the run's end, if the death has not come by then."""
    if point == RANDOM:
        lives.begin()
        lives.ended(seconds)
        tally.killed(RANDOM)
        return
    lives.begin(point)
    deadline = time.monotonic() + POINT_SECONDS
    while not (lives.ended(0.02) or fleet.done or time.monotonic() > deadline):
        pass
    if lives.ended(0):
        tally.killed(point)
    elif not fleet.done:
        tally.killed(RANDOM)  # by the caller, and in the middle of something


class _Auditor:
    """Asks again for every receipt that members have, after each restart and at the end."""

    def __init__(self, fleet: Fleet) -> None:
        self.asked = 0
        self.broken: list[str] = []
        self._fleet = fleet
        self._wake = threading.Event()
        self._over = False
        self._pool = ThreadPoolExecutor(1, "auditor")

    def __enter__(self) -> Self:
        self._work = self._pool.submit(self._audit_for_ever)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._wake.set()
        self._work.result()
        self._audit()

    def wake(self) -> None:
        """There was a restart; while an audit is under way, one more follows it."""
        self._wake.set()

    def _audit_for_ever(self) -> None:
        while not self._over:
            self._wake.wait()
            self._wake.clear()
            self._audit()

    def _audit(self) -> None:
        self.asked += len(self._fleet.ledger.entries())
        self.broken += self._fleet.ledger.broken(self._fleet.federation)


def _judge(federation: Federation, tally: KillTally, expected: list[str | None]) -> None:
    found = adapters_of(federation.view())
    tally.adapters += len(expected)
    tally.differing += sum(a != b for a, b in zip(found, expected, strict=True))
    tally.lost += counted_wrong(federation)
    for digest in expected:
        # Its reader compares the bytes with the digest.
        federation.members["a"].blob(federation.run.id, str(digest))
