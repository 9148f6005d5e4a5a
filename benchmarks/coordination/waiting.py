"""A thousand members that wait for a task: raw sockets in one asyncio process."""

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

from coordination.serving import Seat
from pubswap_protocol import paths

WAIT_SECONDS = 30
AT_ONCE = 100  # connections opened at once


class Waiting:
    """All seats, each polling for its task on a connection of its own."""

    def __init__(self, seats: list[Seat]) -> None:
        self._seats = seats
        self._loop = asyncio.new_event_loop()
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._bodies: list[bytes] = []

    def prepare(self, round_: int) -> None:
        """Connect the first time, and send the requests."""
        if not self._streams:
            self._streams = self._loop.run_until_complete(self._connect())
        for seat, (_, writer) in zip(self._seats, self._streams, strict=True):
            writer.write(_request(seat))

    async def _connect(self) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def connect(seat: Seat) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            address = urlsplit(seat.url)
            async with gate:
                return await asyncio.open_connection(address.hostname, address.port)

        return await asyncio.gather(*(connect(seat) for seat in self._seats))

    def go(self) -> dict[str, Any]:
        """Measure when the first and the last reply were complete."""
        answers = self._loop.run_until_complete(self._read())
        self._bodies = [body for _, body in answers]
        times = [at for at, _ in answers]
        return {"first": min(times), "last": max(times), "answers": len(times)}

    async def _read(self) -> list[tuple[float, bytes]]:
        return await asyncio.gather(*(_answer(reader) for reader, _ in self._streams))

    def check(self) -> float:
        """Return 0; raises AssertionError unless every task is to train."""
        kinds = {json.loads(body)["kind"] for body in self._bodies}
        assert kinds == {"train"}, f"the tasks were {kinds}"
        return 0.0

    def close(self) -> None:
        """Close all connections."""
        for _, writer in self._streams:
            writer.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


def _request(seat: Seat) -> bytes:
    return (
        f"GET {paths.TASK.format(run=seat.run)}?wait={WAIT_SECONDS} HTTP/1.1\r\n"
        f"Host: {urlsplit(seat.url).netloc}\r\n"
        f"Authorization: Bearer {seat.token}\r\n"
        f"{paths.PROTOCOL_HEADER}: {paths.PROTOCOL_VERSION}\r\n\r\n"
    ).encode()


async def _answer(reader: asyncio.StreamReader) -> tuple[float, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    body = await reader.readexactly(int(headers["content-length"]))
    assert status.startswith("http/1.1 200"), f"{status}: {body!r}"
    return time.monotonic(), body
