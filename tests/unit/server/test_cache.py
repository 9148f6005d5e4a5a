"""The pools of closed exchanges: opened once, and kept while enough files may be open."""

import asyncio
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pubswap_protocol.errors import RoundClosed
from pubswap_protocol.methods.strategies import Choice, Keep, Pool
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import (
    NOBODY,
    UNVERIFIED,
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)
from pubswap_server.exchange import cache
from pubswap_server.exchange.cache import (
    ClosedExchange,
    ExchangeCache,
    ResponsePool,
    SingleFlightCache,
)
from pubswap_server.exchange.sampling import donor_number
from pubswap_server.server import allow_open_files
from pubswap_server.storage.local import LocalBlobs
from pubswap_server.storage.spool import Spool

SHELLS = 1024  # a process's default limit of open files
LIMITS = """
import resource
from pubswap_server.server import allow_open_files
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


class Opened:
    """A fake pool that counts how many are opened."""

    count = 0

    def __init__(self, closed: ClosedExchange, blobs: object) -> None:
        Opened.count += 1
        self.files = len(closed.digests)

    def answer(self, member: str, seeds: bool) -> bytes:
        """Any answer."""
        return member.encode()


def asked(exchanges: int, members: int) -> int:
    """Number of pools opened when all members ask in turn, exchange by exchange."""

    async def play() -> None:
        kept = ExchangeCache(None)  # type: ignore[arg-type] - the pools are not real
        closed = ClosedExchange(None, None, None, {str(n): "" for n in range(members)})  # type: ignore[arg-type]

        async def load() -> ClosedExchange:
            return closed

        for member in range(members):
            for exchange in range(exchanges):
                key = ("run", 0, 1, exchange)
                assert await kept.answer(key, str(member), load) == str(member).encode()

    Opened.count = 0
    asyncio.run(play())
    return Opened.count


def test_twenty_exchanges_at_once_are_opened_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen members of each ask in turn, which opens 20 pools and not 320."""
    monkeypatch.setattr(cache, "ResponsePool", Opened)
    assert asked(20, 16) == 20


def test_pools_are_let_go_when_their_files_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used go first; a few stay, however large they are."""
    monkeypatch.setattr(cache, "ResponsePool", Opened)
    monkeypatch.setattr(cache, "MAX_FILES", 64)
    assert asked(5, 16) == 5 * 16
    assert asked(4, 100) == 4


def test_what_failed_is_not_kept() -> None:
    """A member may ask for any number of exchanges that never were."""

    async def play() -> dict[cache.Key, object]:
        kept = SingleFlightCache[int](64, lambda size: size)

        async def load() -> int:
            raise RoundClosed("There is no such exchange.")

        for exchange in range(10):
            with pytest.raises(RoundClosed):
                await kept.get(("run", 0, 1, exchange), load)
        return {**kept._tasks}

    assert asyncio.run(play()) == {}


class Gave:
    """A fake exchange in which every member got one response from a peer."""

    def gifts(self, pool: object, member: str) -> Counter[str]:
        """One gift, from the same peer."""
        return Counter({"peer": 1})


def test_gifts_of_a_round_are_counted_without_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many exchanges there are, each is read once for all members; those that gave nothing
    have no gifts."""
    monkeypatch.setattr(cache, "ResponsePool", Opened)
    monkeypatch.setattr(cache, "MAX_FILES", 1)
    read = Counter[int]()

    async def count(exchanges: int, members: int) -> list[int]:
        kept = ExchangeCache(None)  # type: ignore[arg-type] - the pools are not real
        digests = {str(n): "" for n in range(members)}
        closed = ClosedExchange(Gave(), None, None, digests)  # type: ignore[arg-type]
        found = []
        for member in range(1 + members):
            given = Counter[str]()
            for exchange in range(exchanges):

                async def load(exchange: int = exchange) -> ClosedExchange:
                    read[exchange] += 1
                    return closed

                given += await kept.gifts(("run", 0, 1, exchange), str(member), load)
            found.append(given["peer"])
        return found

    Opened.count = 0
    assert asyncio.run(count(11, 16)) == 16 * [11] + [0]
    assert set(read.values()) == {1} and len(read) == 11
    assert Opened.count == 0


@pytest.mark.parametrize(
    "before, after", [((128, 900), "900 900"), ((512, 512), "512 512")], ids=["raised", "at it"]
)
def test_a_coordinator_may_open_as_many_files_as_it_is_allowed(
    before: tuple[int, int], after: str
) -> None:
    """Shells set the soft limit to 1,024, far below the hard limit."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITS],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == after


@pytest.mark.parametrize("secret", [None, "5e" * 32])
def test_seeds_and_donors_are_told_where_a_run_checks_them_and_who_asks(
    tmp_path: Path, secret: str | None
) -> None:
    """In any other answer, seeds are withheld and donors cannot be told apart."""
    blobs = LocalBlobs(tmp_path / "blobs", Spool(tmp_path / "incoming"))
    rules, digests = ResponseRules((0,), 2, ResponseForm((), 1, 9)), {}
    for token, name in enumerate("abc"):
        one = Response(np.array([token], np.int32), np.array([-1.0], np.float32), seed=10 + token)
        digests[name], _ = blobs.write([encode_responses((0,), [[one, one]])])
    correct = {name: np.array([[name != "a"] * 2]) for name in "abc"}
    exchange = Pool(1, 1, 1, [0], correct)
    pool = ResponsePool(ClosedExchange(Keep(), exchange, rules, digests, secret), blobs)

    def given(seeds: bool) -> list[Response]:
        return decode_responses(pool.answer("a", seeds), rules)[0]

    assert {(one.seed, one.donor) for one in given(False)} == {(UNVERIFIED, NOBODY)}
    for one in given(True):
        donor = "abc"[int(one.tokens[0])]
        if secret is None:
            assert (one.seed, one.donor) == (UNVERIFIED, NOBODY)
        else:
            number = NOBODY if donor == "a" else donor_number(secret, "a", donor)
            assert (one.seed, one.donor) == (10 + one.tokens[0], number)


def open_files() -> int:
    """Number of files that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_exchanges_that_were_asked_for_leave_half_of_the_files_to_connections(
    tmp_path: Path,
) -> None:
    """Even with more exchanges, of two members each, than a shell's limit allows."""
    blobs = LocalBlobs(tmp_path / "blobs", Spool(tmp_path / "incoming"))
    response = Response(np.array([1], np.int32), np.array([-1.0], np.float32))
    digest, _ = blobs.write([encode_responses((0,), [[response]])])
    strategy = SimpleNamespace(choices=lambda _, member: [[Choice(member, 0)]])
    closed = ClosedExchange(
        strategy,  # type: ignore[arg-type] - each keeps its own
        None,  # type: ignore[arg-type]
        ResponseRules((0,), 1, ResponseForm((), 1, 2)),
        {"a": digest, "b": digest},
    )

    async def load() -> ClosedExchange:
        return closed

    async def ask() -> int:
        kept = ExchangeCache(blobs)
        for public_step in range(SHELLS):
            await kept.answer(("run", 0, 1, public_step), "a", load)
        return open_files()

    before = open_files()
    assert asyncio.run(ask()) - before < SHELLS / 2 + 50


def test_a_machine_that_takes_fewer_files_than_its_limit_says_is_asked_for_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as macOS, where a shell's limit is 256."""
    asked = []

    def refuse(kind: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        if limits[0] > 10_240:
            raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    allow_open_files()
    assert asked[1:] == [(10_240, resource.RLIM_INFINITY)]
