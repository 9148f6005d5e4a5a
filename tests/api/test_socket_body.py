"""Bodies that are read past the parser: every byte once, and the next request where it begins."""

import hashlib
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from pubswap_server.guarded_protocol import guarded_protocol
from pubswap_server.pace import Limits
from pubswap_server.socket_body import LARGE, SocketBodyProtocol, socket_body
from support.eventually import until

SIZE = 3_000_000
TIMES = 20
BODY = random.Random(0).randbytes(SIZE)


class Collecting:
    """A sink that keeps what it pulls, at most so much at a time."""

    def __init__(self, at_a_time: int) -> None:
        self.data = bytearray()
        self._at_a_time = at_a_time

    async def pull(self, source: int, most: int) -> int:
        """What has arrived."""
        found = socket.socket(fileno=source)
        try:
            piece = found.recv(min(most, self._at_a_time))
        except BlockingIOError:
            return 0
        finally:
            found.detach()
        self.data += piece
        return len(piece)


class App:
    """Answers with the digest of the body, or after a part of it."""

    def __init__(self) -> None:
        self.cut: list[bytes] = []  # the bodies of connections that ended in them

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """`/all` reads to the end, `/part` answers once a megabyte is here."""
        if scope["type"] != "http":
            return
        enough = SIZE + 1 if scope["path"] == "/all" else 1_000_000
        sink, pulled, body, more = Collecting(100_000), 0, socket_body(scope), True
        while more and len(sink.data) < enough:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.cut.append(bytes(sink.data))
                return
            sink.data += message["body"]
            more = message["more_body"]
            if more and body is not None and len(sink.data) + body.left == SIZE:
                before = len(sink.data)
                await body.into(sink)
                pulled += len(sink.data) - before
        told = {"digest": hashlib.sha256(sink.data).hexdigest(), "pulled": pulled}
        answer = json.dumps(told).encode()
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


LIMITS = Limits(
    header_seconds=10, header_bytes=16_384, idle_seconds=10, grace_seconds=10, bytes_per_second=1
)


@pytest.fixture(
    scope="module",
    params=[SocketBodyProtocol, guarded_protocol(LIMITS)],
    ids=["alone", "with deadlines"],
)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[App, int]]:
    """The application on a real socket, and its port."""
    app, listening = App(), socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=request.param, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield app, listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def connected(served: tuple[App, int]) -> Iterator[socket.socket]:
    """A connection to it."""
    with socket.create_connection(("127.0.0.1", served[1]), timeout=20) as connection:
        yield connection


def head(path: str, length: int = SIZE) -> bytes:
    """A request's head."""
    return f"PATCH {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


def answered(connection: socket.socket) -> dict[str, Any]:
    """The next answer's body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(1)
        assert piece, "the connection was closed before an answer"
        data += piece
    length = int(data.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    found: dict[str, Any] = json.loads(connection.recv(length, socket.MSG_WAITALL))
    return found


def test_a_body_in_any_pieces_is_whole_and_the_next_request_is_answered(
    connected: socket.socket,
) -> None:
    """Most of it goes past the parser; a small one does not."""
    rng, pulled = random.Random(1), 0
    for _ in range(3):
        connected.sendall(head("/all"))
        place = 0
        while place < SIZE:
            step = rng.choice((1, 1000, 70_000, 700_000))
            connected.sendall(BODY[place : place + step])
            place += step
        found = answered(connected)
        assert found["digest"] == hashlib.sha256(BODY).hexdigest()
        pulled += found["pulled"]
    assert pulled > SIZE
    connected.sendall(head("/all", LARGE - 1) + BODY[: LARGE - 1])
    assert answered(connected)["pulled"] == 0


def test_a_request_that_follows_at_once_is_never_taken_for_the_body(
    connected: socket.socket,
) -> None:
    """It is answered too, wherever the body ended in what was read at once."""
    follows = head("/all", 2) + b"ok"
    for _ in range(TIMES):
        whole = head("/all") + BODY + follows
        sending = threading.Thread(target=connected.sendall, args=(whole,))
        sending.start()
        assert answered(connected)["digest"] == hashlib.sha256(BODY).hexdigest()
        sending.join()
        assert answered(connected)["digest"] == hashlib.sha256(b"ok").hexdigest()


def test_an_answer_before_the_end_of_the_body_leaves_the_connection_usable(
    connected: socket.socket,
) -> None:
    """What comes of the body after it is read and forgotten, and ends where the body does."""
    follows = head("/all", 2) + b"ok"
    for _ in range(TIMES):
        whole = head("/part") + BODY + follows
        sending = threading.Thread(target=connected.sendall, args=(whole,))
        sending.start()
        assert answered(connected)["pulled"] > 0
        sending.join()
        assert answered(connected)["digest"] == hashlib.sha256(b"ok").hexdigest()


def test_a_body_that_is_cut_is_told_with_what_came(
    connected: socket.socket, served: tuple[App, int]
) -> None:
    """Its first bytes, in their order."""
    app = served[0]
    app.cut.clear()
    connected.sendall(head("/all") + BODY[:2_000_000])
    time.sleep(0.1)
    connected.shutdown(socket.SHUT_RDWR)
    until(lambda: len(app.cut) == 1)
    assert app.cut == [BODY[:2_000_000]]
