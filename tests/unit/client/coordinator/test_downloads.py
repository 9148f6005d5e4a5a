"""Downloads of a large blob over a real socket that is cut, alters bytes or sends too many."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest

from pubswap_client.coordinator import transfers
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE, Backoff
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import DigestMismatch, ServerFault, Unreachable

AT_ONCE = Backoff(base_seconds=0.0, tries=3)
DATA = Random(1).randbytes((3 << 20) + 12_345)
DIGEST = digest_of(DATA)


@contextmanager
def answering(answer: Callable[[int], bytes]) -> Iterator[tuple[str, list[int]]]:
    """A server that answers one request per connection; yields its URL and the first bytes asked
    for.

    `answer` is called with the first byte of the requested range.
    """
    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    head = connection.recv(1 << 16)
                    found = re.search(rb"(?i)range: bytes=(\d+)-", head)
                    asked.append(int(found[1]) if found else 0)
                    connection.sendall(answer(asked[-1]))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def whole(first: int, data: bytes = DATA) -> bytes:
    """A response with all bytes from `first` on."""
    size, rest = len(data), data[first:]
    status = f"206 Part\r\nContent-Range: bytes {first}-{size - 1}/{size}" if first else "200 OK"
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(rest)}\r\n\r\n".encode() + rest


def fetched(url: str, backoff: Backoff = AT_ONCE) -> bytes:
    """Fetch the blob with a coordinator client."""
    with CoordinatorClient(url, "token", backoff) as api:
        return bytes(api.blob("r", DIGEST))


def test_a_large_blob_comes_whole() -> None:
    """It takes one request."""
    with answering(whole) as (url, asked):
        assert fetched(url) == DATA
        assert asked == [0]


@pytest.mark.parametrize("left", [1, 100_000, 2 << 20, len(DATA) - 10])
def test_after_a_cut_the_rest_is_asked_for(left: int) -> None:
    """The first answer ends `left` bytes early; the second starts there."""
    with answering(lambda first: whole(first) if first else whole(0)[:-left]) as (url, asked):
        assert fetched(url) == DATA
        assert asked == [0, len(DATA) - left]


def test_without_retries_a_cut_is_an_error() -> None:
    """It raises a connection error, and is not mistaken for the end of the blob."""
    with (
        answering(lambda first: whole(0)[: -(1 << 19)]) as (url, _),
        pytest.raises(Unreachable, match="peer closed connection"),
    ):
        fetched(url, ONCE)


def test_bytes_that_changed_on_the_way_are_fetched_once_more_and_refused_then() -> None:
    """A second mismatch with the digest is an error."""
    other = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with (
        answering(lambda first: whole(first, other)) as (url, asked),
        pytest.raises(DigestMismatch),
    ):
        fetched(url)
    assert asked == [0, 0]


def test_what_follows_the_blob_on_its_connection_is_not_read() -> None:
    """A connection with bytes left over is not reused."""
    with answering(lambda first: whole(first) + b"HTTP/1.1 200 OK\r\n\r\n") as (url, asked):
        with CoordinatorClient(url, "token", AT_ONCE) as api:
            assert [bytes(api.blob("r", DIGEST)) == DATA for _ in range(2)] == [True, True]
        assert asked == [0, 0]


def test_an_impossible_size_is_refused_before_memory_is_allocated() -> None:
    """The Content-Length of a petabyte is enough."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999\r\n\r\n"
    with (
        answering(lambda _: head) as (url, _),
        pytest.raises(ServerFault, match="at most 68,719,476,736 are possible"),
    ):
        fetched(url, ONCE)


def test_a_size_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Content-Length decides, before any byte arrives."""

    def no_room(size: int, dtype: type) -> np.ndarray:
        if size:
            raise MemoryError
        return np.zeros(size, dtype)

    monkeypatch.setattr(transfers.np, "empty", no_room)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 68719476736\r\n\r\n"
    with (
        answering(lambda _: head) as (url, _),
        pytest.raises(ServerFault, match="68,719,476,736 bytes, which does not fit into"),
    ):
        fetched(url, ONCE)
