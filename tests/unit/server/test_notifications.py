"""Wake-ups of members and of the conductor, and shared reads."""

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from pubswap_server import notifications
from pubswap_server.notifications import (
    AT_ONCE,
    LATEST_RETRY_SECONDS,
    ChangeNotifier,
    LoopThrottle,
    PollSchedule,
    SingleFlight,
)


class Readings:
    """A slow read that counts its runs, and returns the value at its start."""

    def __init__(self) -> None:
        self.truth = 0
        self.begun = 0
        self.go_on = asyncio.Event()

    async def __call__(self, key: str) -> int:
        self.begun += 1
        found = self.truth
        await self.go_on.wait()
        return found


def test_all_that_ask_before_a_reading_begins_share_it() -> None:
    """A thousand callers cost one read."""

    async def play() -> None:
        readings = Readings()
        shared = SingleFlight(readings)
        asked = [asyncio.create_task(shared.get("run")) for _ in range(1000)]
        await asyncio.sleep(0)
        readings.go_on.set()
        assert await asyncio.gather(*asked) == [0] * 1000
        assert readings.begun == 1

    asyncio.run(play())


def test_nobody_gets_what_was_read_before_it_asked() -> None:
    """A caller during a read gets the next one, even if the first caller is gone."""

    async def play() -> None:
        readings = Readings()
        shared = SingleFlight(readings)
        early = asyncio.create_task(shared.get("run"))
        await asyncio.sleep(0.01)
        readings.truth = 1
        late = [asyncio.create_task(shared.get("run")) for _ in range(3)]
        await asyncio.sleep(0.01)
        early.cancel()
        readings.go_on.set()
        assert await asyncio.gather(*late) == [1, 1, 1]
        assert readings.begun == 2

    asyncio.run(play())


def test_a_failed_reading_fails_for_its_askers_and_not_for_the_next() -> None:
    """The error is raised for each of them; the next caller tries again."""

    async def play() -> None:
        calls = 0

        async def read(key: str) -> str:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ValueError("no")
            return key

        shared = SingleFlight(read)
        failed = await asyncio.gather(shared.get("a"), shared.get("a"), return_exceptions=True)
        assert [str(error) for error in failed] == ["no", "no"]
        assert await shared.get("a") == "a"

    asyncio.run(play())


def test_a_change_while_somebody_reads_is_not_missed() -> None:
    """It may come between the read and the wait."""

    async def play() -> None:
        changes, looks = ChangeNotifier(), 0

        async def look() -> int:
            nonlocal looks
            looks += 1
            if looks == 1:
                changes.notify("run")
            return looks

        found = await asyncio.wait_for(changes.until("run", look, lambda n: n > 1, 60), 30)
        assert found == 2

    asyncio.run(play())


@pytest.mark.parametrize("wake", ["the run", "all runs", "the end"])
def test_whoever_waits_is_woken(wake: str) -> None:
    """By a change of its run, by a change that may concern any run, and when the server stops."""

    async def play() -> None:
        changes, done = ChangeNotifier(), False

        async def look() -> bool:
            return done

        waiting = asyncio.create_task(changes.until("run", look, bool, 60))
        await asyncio.sleep(0.01)
        changes.notify("another")
        await asyncio.sleep(0.01)
        assert not waiting.done()
        done = wake != "the end"
        {
            "the run": lambda: changes.notify("run"),
            "all runs": lambda: changes.heard(None, True),
        }.get(wake, changes.close)()
        assert await asyncio.wait_for(waiting, 30) is done

    asyncio.run(play())


def test_work_is_what_changed_here() -> None:
    """Each changed run comes once; a change by another process is that process's work."""

    async def play() -> None:
        changes = ChangeNotifier()
        for run in ("a", "b", "a"):
            changes.notify(run)
        assert await changes.changed_runs(60) == {"a", "b"}
        assert await changes.changed_runs(0.01) == set()
        changes.notify("c", awaited=False)
        changes.heard("d", awaited=True)
        changes.heard(None, awaited=True)
        assert await changes.changed_runs(60) == {"c"}

    asyncio.run(play())


def test_what_becomes_ready_at_once_lets_the_event_loop_look_up() -> None:
    """Of a thousand, a few continue in each turn, in order; a cancelled one costs no turn."""
    turn, ended = 0, list[tuple[int, int]]()

    async def count() -> None:
        nonlocal turn
        while len(ended) < 999:
            turn += 1
            await asyncio.sleep(0)

    async def play() -> None:
        turns = LoopThrottle()

        async def one(number: int) -> None:
            await turns.take()
            ended.append((turn, number))

        waiting = [asyncio.create_task(one(number)) for number in range(1000)]
        await asyncio.sleep(0)
        waiting[500].cancel()
        await asyncio.gather(count(), *waiting, return_exceptions=True)

    asyncio.run(play())
    assert [number for _, number in ended] == [n for n in range(1000) if n != 500]
    assert max(Counter(turn for turn, _ in ended).values()) <= AT_ONCE


def by_hand(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Let polls read a clock that the test sets."""
    monkeypatch.setattr(notifications, "time", SimpleNamespace(monotonic=clock))


def test_a_run_that_only_time_moves_is_polled_ever_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline is noticed at most 5 % late, and never more than ten seconds."""
    now, polled = 0.0, list[float]()
    by_hand(monkeypatch, lambda: now)
    polls = PollSchedule()
    while now < 1000:
        if polls.due(["run"]):
            polled.append(now)
        now += 1.0
    gaps = [later - earlier for earlier, later in pairwise(polled)]
    assert gaps == sorted(gaps) and gaps[0] == 1 and gaps[-1] == 10
    assert all(gap <= 0.05 * moment + 1 for gap, moment in zip(gaps, polled, strict=False))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda changes: changes.notify("run"), ["run"]),
        (lambda changes: changes.heard("run", awaited=False), ["run"]),
        (lambda changes: changes.heard(None, awaited=False), ["run", "other"]),
    ],
)
def test_a_run_that_has_changed_is_polled_at_the_next_tick(
    change: Callable[[ChangeNotifier], None], found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is a run that another process has changed, or may have; other runs wait for their turn."""
    now, changes = 0.0, ChangeNotifier()
    by_hand(monkeypatch, lambda: now)
    changes.polls.due(["run", "other"])
    now = 500.0
    assert changes.polls.due(["run", "other"]) == ["run", "other"]
    now = 501.0
    assert changes.polls.due(["run", "other"]) == []
    change(changes)
    assert changes.polls.due(["run", "other"]) == found


def test_tries_become_rarer_until_the_run_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait is twice the one before, up to a minute; a success resets them."""
    now = 0.0
    by_hand(monkeypatch, lambda: now)
    polls, waits, stalled = PollSchedule(1.0), [], []
    for _ in range(9):
        stalled.append(polls.failed("run"))
        polls.changed("run")
        began = now
        while not polls.due(["run"]):
            now += 0.5
        waits.append(now - began)
    assert stalled == [False, False, *[True] * 7]
    assert waits == [2, 4, 8, 16, 32, *[LATEST_RETRY_SECONDS] * 4]
    polls.failed("run")
    polls.changed("run")
    assert polls.due(["run", "another"]) == ["another"]
    polls.moved("run")
    assert polls.due(["run"]) == ["run"]
    assert polls.failed("run") is False
