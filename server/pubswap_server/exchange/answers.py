"""What each member of a closed exchange trains on; the responses are read once for all of them."""

import asyncio
import mmap
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from anyio import to_thread

from pubswap_protocol.errors import RoundClosed
from pubswap_protocol.tensors.responses import (
    Offer,
    Response,
    ResponseRules,
    decode_responses,
    encode_offers,
    encode_responses,
)
from pubswap_server.exchange.donation import Exchange
from pubswap_server.storage.store import BlobStore

# Each file is a mapping of its own, of which Linux allows a process some 65,000.
MOST_FILES = 4096
LEAST_KEPT = 4

Key = tuple[str, int, int, int]  # run, how often it was rolled back, round, swap


@dataclass(frozen=True)
class Closed:
    """A closed exchange, as the database has it: who is in it, and whose responses are where."""

    exchange: Exchange
    rules: ResponseRules
    digests: Mapping[str, str]


class Pool:
    """All responses of a closed exchange, mapped from their files."""

    def __init__(self, closed: Closed, blobs: BlobStore) -> None:
        """Open and check the files; raises DamagedBlob."""
        self._closed = closed
        self._groups = {
            name: decode_responses(_mapped(blobs, digest), closed.rules)
            for name, digest in closed.digests.items()
        }

    def answer(self, member: str) -> bytes:
        """The file of groups that a member trains on; raises RoundClosed if it is not among them.

        A peer's response is flagged as donated; whose it is, is not told. Where the member chooses
        itself, it gets the offers.
        """
        if member not in self._groups:
            raise RoundClosed("The exchange closed without responses of yours; train on your own.")
        if self._closed.exchange.candidates is not None:
            return encode_offers(self._closed.rules.prompts, self._offers(member))
        groups = [
            [self._response(member, place, choice.client, choice.index) for choice in group]
            for place, group in enumerate(self._closed.exchange.choices(member))
        ]
        return encode_responses(self._closed.rules.prompts, groups)

    def _offers(self, member: str) -> list[Offer]:
        draws = self._closed.exchange.draws(member)
        return [
            Offer(
                own=self._groups[member][place],
                places=draw.places,
                candidates=[self._groups[c.client][place][c.index] for c in draw.candidates],
            )
            for place, draw in enumerate(draws)
        ]

    def _response(self, member: str, place: int, client: str, index: int) -> Response:
        response = self._groups[client][place][index]
        return response.as_donated() if client != member else response


class Answers:
    """The pools of the exchanges that were asked for last, as many as some thousand files make."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._pools: OrderedDict[Key, asyncio.Task[Pool]] = OrderedDict()
        self._files: dict[Key, int] = {}

    async def answer(self, key: Key, member: str, load: Callable[[], Awaitable[Closed]]) -> bytes:
        """What a member trains on; `load` reads the exchange the first time that anybody asks."""
        task = self._pools.get(key)
        if task is None or (task.done() and task.exception() is not None):
            task = self._pools[key] = asyncio.create_task(self._open(key, load))
        self._pools.move_to_end(key)
        pool = await asyncio.shield(task)
        return await to_thread.run_sync(pool.answer, member)

    async def _open(self, key: Key, load: Callable[[], Awaitable[Closed]]) -> Pool:
        closed = await load()
        self._files[key] = len(closed.digests)
        while len(self._pools) > LEAST_KEPT and sum(self._files.values()) > MOST_FILES:
            oldest, _ = self._pools.popitem(last=False)
            self._files.pop(oldest, None)
        return await to_thread.run_sync(Pool, closed, self._blobs)


def _mapped(blobs: BlobStore, digest: str) -> memoryview:
    with blobs.path(digest).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
