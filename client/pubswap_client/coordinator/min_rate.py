"""httpx's transport, with a limit on the time that a peer may take for all of an answer.

httpx limits each read of the socket, so that a peer that sends a byte a minute would hold a request
for ever. Here the head of an answer has the read timeout as a whole, and a body may take that and a
minute for each MiB, as the coordinator allows for the bodies that it receives. Of a body, only time
spent waiting for the peer counts.
"""

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from importlib.util import find_spec
from typing import Any

import httpcore
import httpx

BYTES_A_SECOND = (1 << 20) / 60
WRITTEN_BYTES = 1 << 18  # between two looks at the time
KEEPALIVE_SECONDS = 5.0  # httpx's own
MAX_CONNECTIONS = 100
_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    httpcore.TimeoutException,
    httpcore.UnsupportedProtocol,
)


class MinRateTransport(httpx.BaseTransport):
    """A pool of connections, direct or through a proxy; raises what httpx's own does."""

    def __init__(self, context: ssl.SSLContext, proxy: httpx.Proxy | None, keepalive: int) -> None:
        """Raises ImportError for a SOCKS proxy if `socksio` is not installed."""
        self._heads = threading.local()
        options: dict[str, Any] = {
            "ssl_context": context,
            "max_connections": MAX_CONNECTIONS,
            "max_keepalive_connections": keepalive,
            "keepalive_expiry": KEEPALIVE_SECONDS,
            "network_backend": _Backend(self._heads),
        }
        self._pool: httpcore.ConnectionPool
        if proxy is None:
            self._pool = httpcore.ConnectionPool(**options)
            return
        options |= {"proxy_url": _url(proxy.url), "proxy_auth": proxy.raw_auth}
        if proxy.url.scheme in ("http", "https"):
            options |= {"proxy_headers": proxy.headers.raw, "proxy_ssl_context": proxy.ssl_context}
            self._pool = httpcore.HTTPProxy(**options)
        else:
            if find_spec("socksio") is None:
                raise ImportError("A SOCKS proxy needs another package: pip install httpx[socks]")
            self._pool = httpcore.SOCKSProxy(**options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        asked = httpcore.Request(
            method=request.method,
            url=_url(request.url),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        self._heads.awaited = True
        try:
            with _as_httpx():
                reply = self._pool.handle_request(asked)
        finally:
            self._heads.awaited = False
        assert isinstance(reply.stream, Iterable)
        return httpx.Response(
            reply.status,
            headers=reply.headers,
            stream=_Body(reply.stream),
            extensions=reply.extensions,
        )

    def close(self) -> None:
        self._pool.close()


def _url(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(
        scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
    )


@contextmanager
def _as_httpx() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise getattr(httpx, type(error).__name__)(str(error)) from error


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx():
            yield from self._stream

    def close(self) -> None:
        self._stream.close()


class _Backend(httpcore.NetworkBackend):
    def __init__(self, heads: threading.local) -> None:
        self._real = httpcore.SyncBackend()
        self._heads = heads

    def connect_tcp(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        return _Stream(self._real.connect_tcp(*args, **options), self._heads)


class _Phase(Enum):
    REQUEST = auto()
    HEAD = auto()
    BODY = auto()


class _Stream(httpcore.NetworkStream):
    """A connection on which requests and answers keep the pace.

    `heads.awaited` tells whether this thread waits for the head of an answer. There, all time
    counts and bytes earn none, because any number of interim answers may come first.
    """

    def __init__(self, stream: httpcore.NetworkStream, heads: threading.local) -> None:
        self._stream = stream
        self._heads = heads
        self._phase = _Phase.REQUEST
        self._waited = self._earned = 0.0  # seconds of this phase
        self._ended = time.monotonic()  # the last read or write

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        phase = _Phase.HEAD if getattr(self._heads, "awaited", False) else _Phase.BODY
        with self._waiting(phase, timeout) as left:
            data = self._stream.read(max_bytes, left)
        if phase is _Phase.BODY:
            self._earned += len(data) / BYTES_A_SECOND
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), WRITTEN_BYTES):
            part = buffer[at : at + WRITTEN_BYTES]
            with self._waiting(_Phase.REQUEST, timeout) as left:
                self._stream.write(part, left)
            self._earned += len(part) / BYTES_A_SECOND

    @contextmanager
    def _waiting(self, phase: _Phase, timeout: float | None) -> Iterator[float | None]:
        """Count the time of a read or a write, and yield the seconds that it may take."""
        if phase is not self._phase:
            self._phase, self._waited, self._earned = phase, 0.0, 0.0
            self._ended = time.monotonic()
        left = None if timeout is None else min(timeout, timeout + self._earned - self._waited)
        if left is not None and left <= 0:
            late = httpcore.WriteTimeout if phase is _Phase.REQUEST else httpcore.ReadTimeout
            raise late(f"less than a MiB a minute after {timeout:g} s")
        began = self._ended if phase is _Phase.HEAD else time.monotonic()
        try:
            yield left
        finally:
            self._ended = time.monotonic()
            self._waited += self._ended - began

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._heads)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
