"""Many clients that wait at once over real sockets, held by another process.

Run as a program, this is that process: `crowd.py URL RUN SECONDS` reads tokens from stdin, one a
line, and prints `waiting` once each has a long poll under way. Then it prints, as JSON, when (on
the machine's monotonic clock) each was answered and with what kind of task.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

from pubswap_protocol import paths

AT_ONCE = 50


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _ask(url: str, run: str, seconds: float, token: str, few: asyncio.Semaphore) -> Streams:
    where, path = urlsplit(url), f"{paths.TASK.format(run=run)}?wait={seconds}"
    async with few:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Authorization: Bearer {token}\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        # Space the connections out, because a flood of them is not what is measured.
        await asyncio.sleep(0.05)
    return reader, writer


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[float, str]:
    await reader.readuntil(b"\r\n\r\n")
    answered = time.monotonic()
    body = await reader.read()
    writer.close()
    return answered, json.loads(body)["kind"]


async def hold(url: str, run: str, seconds: float, tokens: Sequence[str]) -> None:
    """Hold a long poll with each token, and print how each was answered."""
    few = asyncio.Semaphore(AT_ONCE)
    streams = await asyncio.gather(*(_ask(url, run, seconds, token, few) for token in tokens))
    await asyncio.sleep(1)
    print("waiting", flush=True)  # noqa: T201
    answers = await asyncio.gather(*(_answer(*stream) for stream in streams))
    print(json.dumps(answers), flush=True)  # noqa: T201


class Crowd:
    """The other process, which ends with the block."""

    def __init__(self, url: str, run: str, tokens: Sequence[str], seconds: float) -> None:
        """Start it, and return when all wait."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, url, run, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write("\n".join(tokens))
        self._process.stdin.close()
        assert self._line() == "waiting\n", "not all could ask"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def answers(self) -> list[tuple[float, str]]:
        """When each was answered, and with what kind of task."""
        return [(at, kind) for at, kind in json.loads(self._line())]

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.stdin.read().split()))
