"""uvicorn's HTTP protocol, with deadlines: alone it keeps trickled heads and unread answers.

Bodies have theirs in `middleware.Paced`. By hand is only what no application sees: the time and the
bytes of a head, how answers are read, and the end of a connection that cannot be read on.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from pubswap_protocol.errors import (
    HeadersTooLarge,
    Invalid,
    PubSwapError,
    TooManyRequests,
    TooSlow,
)
from pubswap_protocol.paths import PROBLEM_TYPE
from pubswap_server.http.problems import SAFETY_HEADERS

MOST_PIPELINED = 64  # requests of a connection that wait for an answer


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """A head's seconds and bytes, and the seconds in which a peer must read some of an answer."""

    seconds: float
    bytes: int
    idle_seconds: float


class Phase(Enum):
    """What the peer is sending."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class GuardedProtocol(HttpToolsProtocol):
    """Gives up heads that arrive too slowly or are too large, and peers that read no answer."""

    limits: HeadLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = Phase.NOTHING
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # of the lines of this head that are whole
        self._overhead = 0  # bytes since the last byte of a body or the last end of a message
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._last_words: bytes | None = None  # once set, nothing more is read

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the first head's time."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave no timer behind, and tell all requests; uvicorn tells the last one."""
        self._set_timer(None)
        self._watch_writing(None)
        for cycle in self._unanswered:
            _disconnect(cycle)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bound what the parser keeps and gives nobody: an unfinished head, chunk or trailer.

        Of a head that begins in the middle of `data`, that is not known; the next data is counted.
        """
        if self._last_words is not None:
            return
        if self._phase is Phase.NOTHING:
            self._await_head()
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > self.limits.bytes:
            self._refuse_head()

    def pause_writing(self) -> None:
        """Watch a peer that does not read its answer as fast as it could get it."""
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has read on."""
        self._watch_writing(None)
        super().resume_writing()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """A pipelined request has a time of its own."""
        self._await_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count trailers with the head, but do not take them for headers."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self.limits.bytes:
            self._refuse_head()
        elif self._phase is Phase.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request to the application, which reads its body in its own time."""
        if self._head_bytes + len(self.url) > self.limits.bytes:
            self._refuse_head()
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse(Invalid(f"Speak HTTP/1.1, not HTTP/{version}."), status=505)
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            self._refuse(Invalid(f"Send one Host header, not {hosts}."), status=400)
        if len(self._unanswered) >= MOST_PIPELINED:
            self._refuse(TooManyRequests(f"More than {MOST_PIPELINED} requests wait here."))
        if self._last_words is not None:
            return
        super().on_headers_complete()
        self._phase, self._overhead = Phase.BODY, 0
        self._unanswered.append(self.cycle)
        self._set_timer(None)
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Only a body's own bytes are progress."""
        self._overhead = 0
        if self._last_words is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The peer may now wait for as long as we do."""
        self._overhead = 0
        if self._last_words is not None:
            return
        self._phase = Phase.NOTHING
        super().on_message_complete()
        if self.parser.should_upgrade():
            # What follows would be another protocol, and there is none here.
            self._end(b"")

    def on_response_complete(self) -> None:
        """Say the last words in their turn."""
        super().on_response_complete()
        self._unanswered.popleft()
        self._close_if_answered()

    def send_400_response(self, msg: str) -> None:
        """Make a problem of what is no HTTP."""
        self._refuse(Invalid(msg), status=400)

    # Deadlines

    def _await_head(self) -> None:
        if self._phase is not Phase.HEAD:
            self._phase, self._head_bytes = Phase.HEAD, 0
            self._set_timer(self.loop.call_later(self.limits.seconds, self._head_is_late))

    def _head_is_late(self) -> None:
        if self.flow.read_paused:  # it may be here, behind requests that are not answered yet
            self._set_timer(self.loop.call_later(self.limits.seconds, self._head_is_late))
            return
        seconds = self.limits.seconds
        self._refuse(TooSlow(f"The request's headers did not arrive within {seconds:g} s."))

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

    # The end

    def _refuse_head(self) -> None:
        most = self.limits.bytes
        self._refuse(HeadersTooLarge(f"The request's headers have more than {most} bytes."))

    def _refuse(self, error: PubSwapError, status: int | None = None) -> None:
        """Answer a request that cannot be read; an application that reads its body is cut off."""
        if self._last_words is not None:
            return
        words = _answer(error, status or error.status)
        if self._phase is Phase.BODY and not self.cycle.response_complete:
            words = b"" if self.cycle.response_started else words
            _disconnect(self._unanswered.pop())
            if self.pipeline:  # it is the last there, and must not be begun
                self.pipeline.popleft()
        self._end(words)

    def _end(self, words: bytes) -> None:
        """Read no more, and close with these words when all requests before are answered."""
        self._last_words = words
        self._set_timer(None)
        self._close_if_answered()

    def _close_if_answered(self) -> None:
        if self._last_words is None or self._unanswered or self.transport.is_closing():
            return
        self.transport.write(self._last_words)
        self.transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()


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


def guarded_protocol(limits: HeadLimits) -> type[GuardedProtocol]:
    """The class that uvicorn makes one of for each connection."""
    return type("LimitedProtocol", (GuardedProtocol,), {"limits": limits})


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The longest wait for a body's next byte, and for all of them; seconds and bytes."""

    idle_seconds: float
    grace_seconds: float
    bytes_per_second: float


class Pace:
    """The seconds of waiting that a body has left."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._credit = limits.grace_seconds

    @property
    def patience(self) -> float:
        """Seconds to wait for the next bytes."""
        return max(0.0, min(self._credit, self._limits.idle_seconds))

    def spend(self, seconds: float, received: int) -> None:
        """Count a wait, and the bytes that ended it."""
        earned = self._credit - seconds + received / self._limits.bytes_per_second
        self._credit = min(self._limits.grace_seconds, earned)
