"""The responses that each member of a closed exchange trains on, read once for all members."""

import asyncio
import mmap
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from pubswap_protocol.errors import RoundClosed
from pubswap_protocol.methods.strategies import Choice, Pool, Strategy
from pubswap_protocol.tensors.responses import (
    Response,
    ResponseFile,
    ResponseRules,
    encode_responses,
)
from pubswap_server.exchange.sampling import donor_number
from pubswap_server.notifications import LoopThrottle
from pubswap_server.storage.store import BlobStore

# Python keeps a mapped file open, and a process may open 1,024 files unless the limit was raised.
MAX_FILES = 512
MIN_CACHED = 4
# Without its files, an exchange takes half a megabyte for a thousand members.
MAX_EXCHANGES = 64
# Answers assembled at a time. More Python threads are not faster, and the event loop has to wait
# for each of them.
AT_ONCE = 2

T = TypeVar("T")
Key = tuple[str, int, int, int]  # run, rollbacks, round, public_step


@dataclass(frozen=True)
class ClosedExchange:
    """A closed exchange, and the digest of each member's responses."""

    strategy: Strategy
    pool: Pool
    rules: ResponseRules
    digests: Mapping[str, str]
    secret: str | None = None

    def gifts(self, member: str) -> Counter[str]:
        """The number of responses from each peer that a member got."""
        return self.strategy.gifts(self.pool, member) if member in self.digests else Counter()


Load = Callable[[], Awaitable[ClosedExchange]]


class ResponsePool:
    """All responses of a closed exchange, mapped from their files."""

    def __init__(self, closed: ClosedExchange, blobs: BlobStore) -> None:
        """Open and check the files; raises DamagedBlob."""
        self._closed = closed
        self._files = {
            name: ResponseFile(_mapped(blobs, digest), closed.rules)
            for name, digest in closed.digests.items()
        }

    @property
    def files(self) -> int:
        """The number of open files."""
        return len(self._files)

    def answer(self, member: str, seeds: bool = False) -> bytes:
        """The file of groups that a member trains on; raises RoundClosed if it did not answer.

        A peer's response is flagged as donated, without the peer's name. With `seeds`, the file
        holds what the member needs to check the responses.
        """
        if member not in self._files:
            raise RoundClosed("The exchange closed without responses of yours; train on your own.")
        groups = [
            [self._response(member, prompt, choice, seeds) for choice in group]
            for prompt, group in enumerate(self._closed.strategy.choices(self._closed.pool, member))
        ]
        return encode_responses(self._closed.rules.prompts, groups)

    def _response(self, member: str, prompt: int, choice: Choice, seeds: bool) -> Response:
        response = self._files[choice.client].response(prompt, choice.index)
        if not seeds or self._closed.secret is None:
            response = response.anonymous()
        elif choice.client != member:
            number = donor_number(self._closed.secret, member, choice.client)
            response = replace(response, donor=number)
        return response.as_donated() if choice.client != member else response


class SingleFlightCache(Generic[T]):
    """A cache of recent results, each made once for all callers, up to a total size.

    A failure is all callers', and is not kept: members may ask for exchanges that never were.
    """

    def __init__(self, limit: int, size: Callable[[T], int]) -> None:
        self._limit, self._size = limit, size
        self._tasks: OrderedDict[Key, asyncio.Task[T]] = OrderedDict()
        self._sizes: dict[Key, int] = {}

    async def get(self, key: Key, make: Callable[[], Awaitable[T]]) -> T:
        """The result for the key, made if it is not there."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(self._compute(key, make))
        self._tasks.move_to_end(key)
        return await asyncio.shield(task)

    async def _compute(self, key: Key, make: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await make()
        except BaseException:
            self._tasks.pop(key, None)
            self._sizes.pop(key, None)  # of another try, if this one was let go meanwhile
            raise
        if key in self._tasks:
            self._sizes[key] = self._size(result)
        while len(self._tasks) > MIN_CACHED and sum(self._sizes.values()) > self._limit:
            oldest, _ = self._tasks.popitem(last=False)
            self._sizes.pop(oldest, None)
        return result


class ExchangeCache:
    """Caches of recent exchanges and, for fewer of them, of pools, which hold many open files."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._threads, self._turns = CapacityLimiter(AT_ONCE), LoopThrottle()
        self._pools = SingleFlightCache[ResponsePool](MAX_FILES, lambda pool: pool.files)
        self._exchanges = SingleFlightCache[ClosedExchange](MAX_EXCHANGES, lambda closed: 1)

    async def answer(self, key: Key, member: str, load: Load, seeds: bool = False) -> bytes:
        """The file that a member trains on; the first call loads the exchange with `load`."""
        pool = await self._pools.get(key, partial(self._open, load))
        await self._turns.take()
        return await to_thread.run_sync(pool.answer, member, seeds, limiter=self._threads)

    async def _open(self, load: Load) -> ResponsePool:
        closed = await load()
        return await to_thread.run_sync(ResponsePool, closed, self._blobs, limiter=self._threads)

    async def gifts(self, key: Key, member: str, load: Load) -> Counter[str]:
        """The number of responses from each peer that a member got.

        The verdicts determine it. Members report on all exchanges of a round at once, and the files
        need not be opened for that.
        """
        closed = await self._exchanges.get(key, load)
        return await to_thread.run_sync(closed.gifts, member, limiter=self._threads)


def _mapped(blobs: BlobStore, digest: str) -> memoryview:
    with blobs.path(digest).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
