"""A TCP proxy that disturbs connections as its plan says: cuts, delays, throttles, repeats."""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Self

PIECE = 64 << 10
# The kernel's default buffer holds megabytes, more than any wire, and a cut by RST discards them.
UNDER_WAY = 128 << 10
SECONDS = 60.0  # for which an end may accept nothing of what is sent to it


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one connection, by default nothing; up is from client to server."""

    cut_up: int | None = None  # after this many bytes
    cut_down: int | None = None
    reset: bool = False  # cut by RST, not by FIN
    delay_seconds: float = 0.0  # before each piece
    bytes_per_second: float | None = None  # in each direction
    repeat: bool = False  # send the first request a second time, on a connection of its own


Plan = Callable[[int], Fault]


def seeded(seed: int, draw: Callable[[Random], Fault]) -> Plan:
    """A plan that draws connection n's fault from (seed, n) alone."""
    return lambda number: draw(Random(f"{seed}/{number}"))


class FaultProxy:
    """Listens on a free port, by default of the loopback, and forwards connections.

    Counts `up` and `down`, all bytes received from either side, whether forwarded or not, and
    `cuts`, the connections that it cut. With `keeps`, `sent` has the bytes that came up each
    connection.
    """

    def __init__(
        self,
        target: int,
        plan: Plan = lambda number: Fault(),
        keeps: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        self.plan = plan
        self.keeps = keeps
        self.sent: list[bytearray] = []
        self.up = self.down = self.cuts = self.connections = 0
        self._target = ("127.0.0.1", target)
        self._lock = threading.Lock()
        self.over = threading.Event()
        self._listener = socket.create_server((host, 0), backlog=128)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.over.set()
        for thread in self._threads:
            thread.join(10)

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://{self.host}:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()  # like a proxy whose server is down
                continue
            with self._lock:
                fault = self.plan(self.connections)
                self.connections += 1
            thread = threading.Thread(target=_Connection(self, client, server, fault).run)
            self._threads.append(thread)
            thread.start()

    def count(self, up: int = 0, down: int = 0, cuts: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self.up, self.down, self.cuts = self.up + up, self.down + down, self.cuts + cuts

    def say_again(self, request: bytes) -> None:
        """Send a request on a connection of its own, and discard the response."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(self._target, timeout=10) as server,
        ):
            server.sendall(request)
            server.recv(PIECE)


class _Connection:
    """One thread for both directions, so that a close takes effect: no other waits on a socket."""

    def __init__(
        self, proxy: FaultProxy, client: socket.socket, server: socket.socket, fault: Fault
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._fault = fault
        self._until_cut = {client: fault.cut_up, server: fault.cut_down}
        self._request: bytearray | None = bytearray() if fault.repeat else None
        self._sent = bytearray()
        proxy.sent.append(self._sent)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNDER_WAY)
            end.settimeout(SECONDS)

    def run(self) -> None:
        """Pass bytes on until an end closes, the plan cuts, or the proxy is done."""
        ends = [self._client, self._server]
        reset = False
        with contextlib.suppress(OSError):
            while not self._proxy.over.is_set():
                ready, _, _ = select.select(ends, [], [], 0.1)
                if not all(self._pass_on(source) for source in ready):
                    break
        if any(remaining is not None and remaining < 0 for remaining in self._until_cut.values()):
            self._proxy.count(cuts=1)
            reset = self._fault.reset
        for end in ends:
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def _pass_on(self, source: socket.socket) -> bool:
        """Forward a piece; returns whether the connection is still alive."""
        piece = source.recv(PIECE)
        if not piece:
            return False
        up = source is self._client
        self._proxy.count(**{"up" if up else "down": len(piece)})
        if up and self._proxy.keeps:
            self._sent += piece
        self._linger(len(piece))
        sink = self._server if up else self._client
        remaining = self._until_cut[source]
        if remaining is not None:
            self._until_cut[source] = remaining - len(piece)
            piece = piece[:remaining]
        sink.sendall(piece)
        if up:
            self._repeat(piece)
        return (self._until_cut[source] or 0) >= 0

    def _linger(self, size: int) -> None:
        rate = self._fault.bytes_per_second
        seconds = self._fault.delay_seconds + (size / rate if rate else 0.0)
        if seconds:
            time.sleep(seconds)

    def _repeat(self, piece: bytes) -> None:
        """Send the first request a second time, once it is whole."""
        if self._request is None:
            return
        self._request += piece
        head, separator, body = bytes(self._request).partition(b"\r\n\r\n")
        if not separator:
            return
        fields = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        sizes = [int(value) for name, _, value in fields if name.lower() == b"content-length"]
        size = sizes[0] if sizes else 0
        if len(body) >= size:
            self._request = None
            self._proxy.say_again(head + separator + body[:size])
