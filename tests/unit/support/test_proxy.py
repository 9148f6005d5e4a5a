"""The proxy that spoils connections, against a server that echoes."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from support.chaos.proxy import Fault, FaultProxy

HELLO = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"


class Echo:
    """Sends back what it gets, and remembers it by connection."""

    def __init__(self) -> None:
        self.heard: list[bytearray] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def serve(self) -> None:
        """Until the listener closes."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._echo, args=(connection,)).start()

    def _echo(self, connection: socket.socket) -> None:
        heard = bytearray()
        self.heard.append(heard)
        with connection, contextlib.suppress(OSError):
            while piece := connection.recv(4096):
                heard += piece
                connection.sendall(piece)

    def close(self) -> None:
        """Stop accepting."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A running echo server."""
    server = Echo()
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.close()
    thread.join(10)


def talk(proxy: FaultProxy, data: bytes) -> bytes:
    """What comes back until the proxy closes or all is echoed; a reset is an end as well."""
    got = b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        with contextlib.suppress(OSError):
            client.sendall(data)
            while len(got) < len(data) and (piece := client.recv(4096)):
                got += piece
        return got


def test_without_a_fault_bytes_pass_and_are_counted(echo: Echo) -> None:
    """What is sent comes back, and each direction is counted."""
    with FaultProxy(echo.port) as proxy:
        assert talk(proxy, b"x" * 100_000) == b"x" * 100_000
    assert (proxy.up, proxy.down, proxy.cuts) == (100_000, 100_000, 0)


def wait_for(echo: Echo, heard: list[bytes]) -> None:
    """Return when the server has heard exactly this; fail after a while."""
    deadline = time.monotonic() + 10
    while [bytes(each) for each in echo.heard] != heard:
        assert time.monotonic() < deadline, echo.heard
        time.sleep(0.01)


def test_a_cut_passes_on_exactly_so_many_bytes(echo: Echo) -> None:
    """The server hears three bytes and no more, or the client two; the connection is closed."""
    with FaultProxy(echo.port, lambda number: Fault(cut_up=3)) as proxy:
        assert b"hel".startswith(talk(proxy, b"hello"))
    assert proxy.cuts == 1
    wait_for(echo, [b"hel"])
    with FaultProxy(echo.port, lambda number: Fault(cut_down=2)) as proxy:
        assert talk(proxy, b"hello") == b"he"
    assert proxy.cuts == 1


def test_a_cut_by_reset_is_an_error_at_the_client(echo: Echo) -> None:
    """Not the end of a stream, as after a close."""
    with (
        FaultProxy(echo.port, lambda number: Fault(cut_up=0, reset=True)) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client,
    ):
        client.sendall(b"hello")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert proxy.cuts == 1


def test_a_throttled_connection_takes_its_time(echo: Echo) -> None:
    """A thousand bytes each way at 10,000 a second, and delays, take at least 0.3 s."""
    plan = Fault(delay_seconds=0.05, bytes_per_second=10_000)
    started = time.monotonic()
    with FaultProxy(echo.port, lambda number: plan) as proxy:
        assert talk(proxy, b"x" * 1000) == b"x" * 1000
    assert time.monotonic() - started >= 0.3


def test_a_repeated_request_reaches_the_server_twice(echo: Echo) -> None:
    """The whole request comes again on a connection of its own; the client sees one answer."""
    with FaultProxy(echo.port, lambda number: Fault(repeat=True)) as proxy:
        assert talk(proxy, HELLO) == HELLO
    wait_for(echo, [HELLO, HELLO])
