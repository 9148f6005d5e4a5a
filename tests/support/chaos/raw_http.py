"""HTTP by hand, over a bare TCP connection."""

import contextlib
import json
import socket
from collections.abc import Iterator


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
    """All that comes until the other side closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := raw.recv(65536):
            answer += piece
    return answer


def problem_of(answer: bytes) -> tuple[int, str, bytes]:
    """Status, code and headers of a refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"], head.lower()
