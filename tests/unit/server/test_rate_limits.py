"""Token buckets: how often a member may send requests, and an address may fail."""

import asyncio
from types import SimpleNamespace

import pytest

from pubswap_protocol.errors import TooManyRequests, Unavailable
from pubswap_server import rate_limits
from pubswap_server.rate_limits import MAX_KEYS, Buckets, GoodSecrets, Rate, RequestLimits, Use

RATE = Rate(per_second=20, burst=40)


class HandClock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(rate_limits, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_a_burst_passes_and_then_only_the_rate(clock: HandClock) -> None:
    """40 at once, then 20 a second for hours, however the requests are spread."""
    buckets: Buckets[str] = Buckets(RATE)
    assert [buckets.take("a") for _ in range(40)] == [0] * 40
    assert buckets.take("a") == pytest.approx(0.05)
    assert buckets.take("b") == 0
    passed = 0
    for step in range(1, 10_001):
        clock.now = step / 100
        passed += buckets.take("a") == 0
    assert passed in range(1999, 2002)


def test_a_refused_request_costs_nothing(clock: HandClock) -> None:
    """Asking too early does not lengthen the wait."""
    buckets: Buckets[str] = Buckets(Rate(1, 1))
    buckets.take("a")
    for _ in range(100):
        assert buckets.take("a") > 0
    clock.now = 1.0
    assert buckets.take("a") == 0


def test_keys_are_bounded() -> None:
    """Many addresses cannot fill memory; the most recent are kept."""
    buckets: Buckets[int] = Buckets(Rate(0.001, 1))
    for key in range(MAX_KEYS + 10):
        buckets.take(key)
    assert buckets.take(0) == 0
    assert buckets.take(MAX_KEYS + 9) > 0
    buckets.charge(1, -1)  # evicted meanwhile
    assert buckets.take(1) == 0


def limits_with(good: dict[str, Use], reads: list[float] | None = None) -> RequestLimits:
    """Limits of a process whose database has these secrets; `reads` gets each read's time."""

    async def read() -> dict[str, Use]:
        if reads is not None:
            reads.append(rate_limits.time.monotonic())
        await asyncio.sleep(0)
        return good

    return RequestLimits(Buckets(RATE), GoodSecrets(read), Buckets(Rate(0.001, 3)))


async def passes(limits: RequestLimits, secret: str, use: Use = Use.API) -> bool:
    """Whether a secret from the address of all is not refused."""
    try:
        await limits.check_peer("proxy", {secret: use})
    except TooManyRequests:
        return False
    return True


async def fail(limits: RequestLimits) -> None:
    """Guess until the address is refused."""
    for number in range(3):
        assert await passes(limits, f"guess {number}")
        limits.failed("proxy", f"guess {number}")


def test_an_address_that_fails_too_often_is_refused_but_not_its_good_tokens(
    clock: HandClock,
) -> None:
    """A member that shares its address with someone guessing tokens is not affected.

    Also if its token was never sent before, or was issued meanwhile by another process.
    """

    async def work() -> None:
        good = {"good": Use.API}
        limits = limits_with(good)
        await fail(limits)
        assert not await passes(limits, "another guess")
        assert await passes(limits, "good")
        good["new"] = Use.API
        assert await passes(limits, "new")
        await limits.check_peer("elsewhere", {"guess": Use.API})
        del good["good"]
        limits.failed("proxy", "good")  # revoked
        assert not await passes(limits, "good")
        clock.now = 1000.0
        assert await passes(limits, "another guess")

    asyncio.run(work())


def test_a_secret_is_good_for_its_own_use_alone() -> None:
    """A member's token is no invite, and a viewer's token is only for the dashboard."""

    async def work() -> None:
        uses = {"token": Use.API, "viewer": Use.DASHBOARD, "invite": Use.ENROLMENT}
        limits = limits_with({**uses, "operator": Use.API | Use.DASHBOARD})
        await fail(limits)
        for secret, own in uses.items():
            assert [await passes(limits, secret, use) for use in Use] == [use is own for use in Use]
        assert [await passes(limits, "operator", use) for use in Use] == [True, True, False]

    asyncio.run(work())


def test_one_read_answers_all_who_guess_meanwhile() -> None:
    """A thousand guesses at once cost two reads: those that came during the first get another."""

    async def work() -> None:
        reads: list[float] = []
        limits = limits_with({"good": Use.API}, reads)
        await fail(limits)
        answers = await asyncio.gather(*(passes(limits, f"guess {n}") for n in range(1000)))
        assert not any(answers)
        assert len(reads) in (1, 2)
        assert await passes(limits, "good")
        assert len(reads) in (1, 2)

    asyncio.run(work())


def test_a_read_that_fails_refuses_nobody_for_good() -> None:
    """The error reaches those who wait for the read, and the next one is tried."""

    async def work() -> None:
        broken = [True]

        async def read() -> dict[str, Use]:
            if broken.pop() if broken else False:
                raise Unavailable("The database does not answer.")
            return {"good": Use.API}

        limits = RequestLimits(Buckets(RATE), GoodSecrets(read), Buckets(Rate(0.001, 3)))
        await fail(limits)
        with pytest.raises(Unavailable):
            await passes(limits, "good")
        assert await passes(limits, "good")

    asyncio.run(work())


def test_a_token_that_is_given_back_can_be_taken_again() -> None:
    """Once: a chunk of an upload costs no request."""
    buckets: Buckets[str] = Buckets(RATE)
    for _ in range(40):
        buckets.take("a")
    buckets.charge("a", -1)
    assert buckets.take("a") == 0
    assert buckets.take("a") > 0


def test_a_costly_request_is_paid_for_afterwards(clock: HandClock) -> None:
    """However few tokens are left: the next one waits until the debt is paid."""
    buckets: Buckets[str] = Buckets(Rate(10, 2))
    buckets.charge("a", 5)
    assert buckets.take("a") == 0  # a key without a request owes nothing
    buckets.charge("a", 5)
    assert buckets.wait("a") == pytest.approx(0.5)
    clock.now += 0.5
    assert buckets.take("a") == 0
