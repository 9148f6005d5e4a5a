"""uvicorn's HTTP protocol, with deadlines: alone it keeps trickled headers and bodies for ever."""

import asyncio
import time
from enum import Enum, auto
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from pubswap_protocol.errors import HeadersTooLarge, Invalid, PubSwapError, TooSlow
from pubswap_protocol.paths import PROBLEM_TYPE
from pubswap_server import pace
from pubswap_server.pace import Limits
from pubswap_server.problem_json import SAFETY_HEADERS
from pubswap_server.socket_body import SocketBodyProtocol


class Phase(Enum):
    """What the peer is sending."""

    NOTHING = auto()
    HEADERS = auto()
    BODY = auto()
    REFUSED = auto()


class GuardedProtocol(SocketBodyProtocol):
    """Gives up what arrives too slowly, or with headers that are too large.

    There is no limit on a request's whole time: a long poll may wait, an upload that progresses may
    take hours, and time in which we ourselves do not read is not held against the peer.
    """

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = Phase.NOTHING
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._body_bytes = 0
        self._pace = pace.begun(self.limits)
        self._looked = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection on which nothing comes is as good as a slow header."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave no timer behind."""
        self._set_timer(None)
        self._watch_writing(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the headers' bytes, the parser's unfinished ones too."""
        if self._phase is Phase.REFUSED:
            return
        if self._phase is Phase.NOTHING:
            self._await_headers()
        unfinished, in_body = self._header_bytes + len(data), self._phase is Phase.BODY
        super().data_received(data)
        if self._phase is Phase.HEADERS and not in_body:  # or some of it was the body's
            self._header_bytes = unfinished
        if self._header_bytes > self.limits.header_bytes:
            self._refuse_headers()

    def pause_writing(self) -> None:
        """The peer does not read its answer as fast as it could get it."""
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has read on."""
        self._watch_writing(None)
        super().resume_writing()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """The headers' first byte; a pipelined request has its own deadline."""
        self._await_headers()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are counted with the headers."""
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes <= self.limits.header_bytes:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Before any of the application runs."""
        if self._header_bytes + len(self.url) > self.limits.header_bytes:
            self._refuse_headers()
            return
        self._await_body()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The body's own bytes count, and not what frames them."""
        if self._phase is not Phase.REFUSED:
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The peer has said it all; it may now wait for as long as we do."""
        if self._phase is not Phase.REFUSED:
            self._phase = Phase.NOTHING
            self._set_timer(None)
            super().on_message_complete()

    def _took(self, count: int) -> None:
        """Bytes that went past the parser count like the others."""
        self._body_bytes += count
        super()._took(count)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP at all is a problem like any other."""
        if self._phase is not Phase.REFUSED:
            self._refuse(Invalid(msg), status=400)

    # Deadlines

    def _await_headers(self) -> None:
        if self._phase is Phase.HEADERS:
            return
        self._phase, self._header_bytes = Phase.HEADERS, 0
        self._set_timer(self.loop.call_later(self.limits.header_seconds, self._headers_late))

    def _headers_late(self) -> None:
        seconds = self.limits.header_seconds
        self._refuse(TooSlow(f"The request's headers did not arrive within {seconds:g} s."))

    def _await_body(self) -> None:
        self._phase = Phase.BODY
        self._body_bytes, self._looked = 0, time.monotonic()
        self._pace = pace.begun(self.limits)
        self._look_again()

    def _look_again(self) -> None:
        seconds = min(1.0, self.limits.idle_seconds / 4, self.limits.grace_seconds / 4)
        self._set_timer(self.loop.call_later(seconds, self._look_at_body))

    def _look_at_body(self) -> None:
        now, received = time.monotonic(), self._body_bytes
        seconds = now - self._looked
        self._looked, self._body_bytes = now, 0
        if not self.flow.read_paused:
            self._pace = pace.after(self._pace, self.limits, seconds, received)
        if pace.too_slow(self._pace, self.limits):
            rate = self.limits.bytes_per_second
            self._refuse(
                TooSlow(
                    f"The body stopped for {self.limits.idle_seconds:g} s, or came with less than "
                    f"{rate:g} bytes a second; what an upload session has is kept."
                )
            )
            return
        self._look_again()

    def _watch_writing(self, unsent: int | None) -> None:
        """Abort unless the peer takes some of these bytes in time; None: nothing to watch."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if unsent is not None:
            self._write_timer = self.loop.call_later(
                self.limits.idle_seconds, self._look_at_writing, unsent
            )

    def _look_at_writing(self, before: int) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent >= before:
            self.transport.abort()
        else:
            self._watch_writing(unsent)

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    # Refusing

    def _refuse_headers(self) -> None:
        most = self.limits.header_bytes
        self._refuse(HeadersTooLarge(f"The request's headers have more than {most} bytes."))

    def _refuse(self, error: PubSwapError, status: int | None = None) -> None:
        """Answer, unless an answer has begun, and close; the application sees a disconnect."""
        if self._phase is Phase.REFUSED:
            return
        under_way = self._phase is Phase.BODY or (
            self.cycle is not None and not self.cycle.response_complete
        )
        answered = under_way and self.cycle is not None and self.cycle.response_started
        self._phase = Phase.REFUSED
        self._set_timer(None)
        if self.transport.is_closing():
            return
        if not answered:
            self.transport.write(_answer(error, status or error.status))
        if under_way and self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


def _answer(error: PubSwapError, status: int) -> bytes:
    body = error.problem().model_copy(update={"status": status}).model_dump_json().encode()
    headers = {
        **SAFETY_HEADERS,
        "content-type": PROBLEM_TYPE,
        "content-length": str(len(body)),
        "connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return STATUS_LINE[status] + lines.encode("latin-1") + b"\r\n" + body


def guarded_protocol(limits: Limits) -> type[GuardedProtocol]:
    """The class that uvicorn makes one of for each connection."""
    return type("LimitedProtocol", (GuardedProtocol,), {"limits": limits})
