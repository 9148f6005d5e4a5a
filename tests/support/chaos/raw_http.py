"""HTTP by hand, over a bare TCP connection."""

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass


@contextlib.contextmanager
def connected(url: str, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """A bare TCP connection to a coordinator."""
    host, port = url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.settimeout(20)
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    with raw:
        raw.connect((host, int(port)))
        yield raw


def rest(raw: socket.socket) -> bytes:
    """Everything received until the other side closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := raw.recv(65536):
            answer += piece
    return answer


def problem_of(answer: bytes) -> tuple[int, str, bytes]:
    """Status, error code and headers of an error response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"], head.lower()


@dataclass(frozen=True)
class Request:
    """A request that a client sent."""

    method: str
    target: str
    body: bytes


def requests_in(stream: bytes) -> Iterator[Request]:
    """All complete requests received over one connection."""
    while stream:
        head, end, stream = stream.partition(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        size = int(length[1]) if length else 0
        if not end or len(stream) < size:
            return
        yield Request(method, target, stream[:size])
        stream = stream[size:]
