"""The pools of closed exchanges: opened once, kept while there is room."""

import asyncio
from collections import Counter

import pytest

from pubswap_server.exchange import answers
from pubswap_server.exchange.answers import Answers, ClosedExchange


class Opened:
    """Stands in for a pool; counts."""

    count = 0

    def __init__(self, closed: ClosedExchange, blobs: object) -> None:
        Opened.count += 1
        self.files = len(closed.digests)

    def answer(self, member: str, seeds: bool) -> bytes:
        """Whatever it is."""
        return member.encode()


def asked(exchanges: int, members: int) -> int:
    """How many pools are opened when all members ask, exchange by exchange, each in turn."""

    async def play() -> None:
        kept = Answers(None)  # type: ignore[arg-type] - the pools are not real
        closed = ClosedExchange(None, None, {str(n): "" for n in range(members)})  # type: ignore[arg-type]

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
    """Sixteen members of each ask in turn: 20 pools, not 320."""
    monkeypatch.setattr(answers, "ResponsePool", Opened)
    assert asked(20, 16) == 20


def test_pools_are_let_go_when_their_files_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not asked for the longest; a few stay however large they are."""
    monkeypatch.setattr(answers, "ResponsePool", Opened)
    monkeypatch.setattr(answers, "MOST_FILES", 64)
    assert asked(5, 16) == 5 * 16
    assert asked(4, 100) == 4


class Gave:
    """Stands in for an exchange: everybody got one response of a peer's."""

    def gifts(self, member: str) -> Counter[str]:
        """One, of the same peer."""
        return Counter({"peer": 1})


def test_gifts_of_a_round_are_counted_without_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many exchanges it has, each is read once for all members; who gave none got none."""
    monkeypatch.setattr(answers, "ResponsePool", Opened)
    monkeypatch.setattr(answers, "MOST_FILES", 1)
    read = Counter[int]()

    async def count(exchanges: int, members: int) -> list[int]:
        kept = Answers(None)  # type: ignore[arg-type] - the pools are not real
        digests = {str(n): "" for n in range(members)}
        closed = ClosedExchange(Gave(), None, digests)  # type: ignore[arg-type]
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
