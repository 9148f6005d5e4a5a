"""Real slow peers: an answer that comes too slowly ends, and an honest slow one does not."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from pubswap_client.coordinator import min_rate
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.min_rate import MinRateTransport
from pubswap_client.coordinator.retry import ONCE
from pubswap_protocol.errors import Unreachable

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Send = Callable[[bytes], None]


@contextmanager
def peer(answer: Callable[[Send], None], reads: bool = True) -> Iterator[str]:
    """A server that reads the head of a request, if it `reads`, and answers with this."""
    ended = threading.Event()

    def serve(listening: socket.socket) -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                if reads:
                    connection.recv(1 << 16)
                answer(connection.sendall)
                ended.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()


def dripped(head: bytes, drop: bytes) -> Callable[[Send], None]:
    """An answer that begins with `head`, and then sends a drop many times a second for ever."""

    def answer(send: Send) -> None:
        send(head)
        while True:
            send(drop)
            time.sleep(0.02)

    return answer


def client(timeout: float) -> httpx.Client:
    """A client of the kind that a coordinator is asked with."""
    context = httpx.create_ssl_context()
    return httpx.Client(transport=MinRateTransport(context, None, 1), timeout=timeout)


@pytest.mark.parametrize(
    "answer",
    [
        dripped(HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
        dripped(HEAD + b"X-Long: ", b"x"),
        dripped(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x"),
        dripped(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000),
        dripped(b"", b""),
    ],
    ids=["body", "header", "chunk", "interim answers", "nothing"],
)
def test_an_answer_in_drops_does_not_hold_a_request_for_ever(
    answer: Callable[[Send], None],
) -> None:
    """Although each drop ends a read of the socket long before its timeout."""
    with peer(answer) as url, client(0.5) as http, pytest.raises(httpx.ReadTimeout):
        http.get(url)


def test_a_request_that_nobody_reads_does_not_hold_its_sender() -> None:
    """Once the socket's buffers are full."""
    unread = peer(lambda send: None, reads=False)
    with unread as url, client(0.5) as http, pytest.raises(httpx.WriteTimeout):
        http.put(url, content=[bytes(1 << 20)] * 64)


def test_a_large_answer_at_an_honest_rate_may_take_longer_than_a_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A body's bytes earn time; so does an answer that comes as late as a long poll's."""
    monkeypatch.setattr(min_rate, "BYTES_A_SECOND", 1000.0)

    def answer(send: Send) -> None:
        time.sleep(1.5)
        send(HEAD + b"Content-Length: 25000\r\n\r\n")
        for _ in range(25):
            time.sleep(0.1)
            send(b"x" * 1000)

    with peer(answer) as url, client(2.0) as http:
        assert len(http.get(url).content) == 25_000


def test_a_coordinator_that_answers_in_drops_cannot_be_reached() -> None:
    """As if it were down: the request is tried again, or its command says so."""
    answer = dripped(HEAD + b"Content-Length: 1000000\r\n\r\n", b" ")
    with (
        peer(answer) as url,
        CoordinatorClient(url, "token", ONCE) as api,
        pytest.raises(Unreachable, match=r"timed out|less than a MiB a minute"),
    ):
        api.once("GET", "/v1/version", timeout=0.5)
