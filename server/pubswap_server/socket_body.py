"""A large body straight from its socket: past the parser, which copies each byte three times."""

import asyncio
import os
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import is_ssl

LARGE = 1 << 16
_EXTENSION = "pubswap.socket_body"


class Sink(Protocol):
    """Where the bytes go."""

    async def pull(self, source: int, most: int) -> int:
        """Take what has arrived at a socket, at most so many bytes; returns how many."""
        ...


class SocketBody:
    """What of a request's body the parser has not seen. One reads either here or by ASGI's receive.

    The first message of `receive` must be taken before, and the next one whenever `into` returns:
    it waits for more, and tells the end of the body or of the connection.
    """

    def __init__(
        self,
        length: int,
        transport: asyncio.Transport,
        flow: FlowControl,
        took: Callable[[int], None],
    ) -> None:
        """A body of `length` bytes; `took` is told how many were read here."""
        self.left = length
        self.taken = 0
        self._transport = transport
        self._flow = flow
        self._took = took

    async def into(self, sink: Sink) -> None:
        """Give the sink what has arrived, while the connection reads nothing itself."""
        self._flow.pause_reading()
        # One of our own: if the connection is closed meanwhile, its number may be another's.
        source = os.dup(self._transport.get_extra_info("socket").fileno())
        try:
            while self.left and (count := await sink.pull(source, self.left)):
                self.left -= count
                self.taken += count
                self._took(count)
        finally:
            os.close(source)


def socket_body(scope: MutableMapping[str, Any]) -> SocketBody | None:
    """The request's body on its socket, if it can be read there: it is large, and not encrypted."""
    found = scope.get("extensions", {}).get(_EXTENSION)
    return found if isinstance(found, SocketBody) and found.left else None


def taken_bytes(scope: MutableMapping[str, Any]) -> int:
    """How many bytes of a request's body were read past ASGI's receive."""
    found = scope.get("extensions", {}).get(_EXTENSION)
    return found.taken if isinstance(found, SocketBody) else 0


class SocketBodyProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with a `SocketBody` in the scope of a request with a large body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._socket_body: SocketBody | None = None
        self._after_body = b""

    def data_received(self, data: bytes) -> None:
        """What the parser took for the rest of a body, and is not, is the next request."""
        super().data_received(data)
        while self._after_body:
            data, self._after_body = self._after_body, b""
            super().data_received(data)

    def on_headers_complete(self) -> None:
        """Offer the body, unless the requests before this one are still being answered."""
        self._socket_body = None
        length = _length(self.headers)
        alone = self.cycle is None or self.cycle.response_complete
        if alone and length >= LARGE and not is_ssl(self.transport):
            self._socket_body = SocketBody(length, self.transport, self.flow, self._took)
            extensions = {_EXTENSION: self._socket_body}
            self.scope["extensions"] = extensions  # type: ignore[typeddict-item]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count what the parser has seen, which does not know what it has not."""
        here = self._socket_body
        if here is None:
            super().on_body(body)
            return
        body, self._after_body = body[: here.left], body[here.left :]
        here.left -= len(body)
        super().on_body(body)
        if here.taken:
            self._end_if_whole(here)

    def _took(self, count: int) -> None:
        """Bytes of the body have gone past the parser."""
        if self._socket_body is not None and self.parser is not None:
            self._end_if_whole(self._socket_body)

    def _end_if_whole(self, body: SocketBody) -> None:
        """What the parser still waits for will not come: the next request gets another one."""
        if not body.left:
            self._socket_body = None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.on_message_complete()


def _length(headers: list[tuple[bytes, bytes]]) -> int:
    """The declared length; 0 if there is none, or the body is framed in another way."""
    found = dict(headers)
    if b"transfer-encoding" in found or b"upgrade" in found:
        return 0
    return int(found.get(b"content-length", b"0"))
