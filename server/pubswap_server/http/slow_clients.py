"""uvicorn's HTTP protocol with limits on what an application never sees.

Subclassed because uvicorn has no options for these: the time and size of a request's head, peers
that do not read their responses, refusals in the order of the requests, and closing a connection
that cannot be parsed further. Bodies have their deadlines in `middleware.BodyDeadlines`.
"""

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from pubswap_protocol.errors import HeadersTooLarge, Invalid, PubSwapError, TooManyRequests, TooSlow
from pubswap_protocol.paths import PROBLEM_TYPE
from pubswap_server.http.problems import SAFETY_HEADERS

HEAD_SECONDS = 10.0  # for a request's head, or idle_seconds if that is less
MAX_HEAD_BYTES = 16 << 10
MAX_PIPELINED = 64  # unanswered requests per connection


class GuardedProtocol(HttpToolsProtocol):
    """Refuse heads that are too slow or too large; drop peers that do not read responses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._services = self.app_state["services"]
        self._idle_seconds: float = self._services.settings.idle_seconds
        self._head_seconds = min(HEAD_SECONDS, self._idle_seconds)
        self._head_timer: asyncio.TimerHandle | None = None  # set while a head is under way
        self._in_body = False
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # in the complete lines of this head
        self._overhead = 0  # bytes since the last body byte or end of a message
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._last_words: bytes | None = None  # once set, nothing more is read

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers and disconnect all requests; uvicorn knows only the last one."""
        self._stop_head_timer()
        self._watch_writing(None)
        for cycle in self._unanswered:
            _disconnect(cycle)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bound what the parser buffers: an unfinished head, chunk or trailer.

        A head that begins in the middle of `data` is counted only from the next data on.
        """
        if self._last_words is not None:
            return
        if not self._in_body:
            self._await_head()
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > MAX_HEAD_BYTES:
            self._refuse_head()

    def pause_writing(self) -> None:
        """Watch a peer that reads its response too slowly."""
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._watch_writing(None)
        super().resume_writing()

    def shutdown(self) -> None:
        """Wake the long polls too, because they would delay the shutdown."""
        self._services.changes.close()
        super().shutdown()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """Give each pipelined request its own timer."""
        self._await_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count trailers with the head, but do not treat them as headers."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        elif not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the head and hand the request to the application, which reads the body itself."""
        if self._head_bytes + len(self.url) > MAX_HEAD_BYTES:
            self._refuse_head()
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse(Invalid(f"Use HTTP/1.1, not HTTP/{version}."), status=505)
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            self._refuse(Invalid(f"Send one Host header, not {hosts}."), status=400)
        if len(self._unanswered) >= MAX_PIPELINED:
            self._refuse(TooManyRequests(f"More than {MAX_PIPELINED} requests wait for an answer."))
        if self._last_words is not None:
            return
        super().on_headers_complete()
        self._stop_head_timer()
        self._in_body, self._overhead = True, 0
        self._unanswered.append(self.cycle)
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Count only a body's own bytes as progress."""
        self._overhead = 0
        if self._last_words is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body; the peer may wait for its response without a deadline."""
        self._overhead = 0
        if self._last_words is not None:
            return
        self._in_body = False
        super().on_message_complete()
        if self.parser.should_upgrade():
            # Bytes after it would be of another protocol, and none is supported.
            self._end(b"")

    def on_response_complete(self) -> None:
        """Send the last words once all earlier requests are answered."""
        super().on_response_complete()
        self._unanswered.popleft()
        self._close_if_answered()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with problem+json."""
        self._refuse(Invalid(msg), status=400)

    # Deadlines

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(self._head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.flow.read_paused:  # it may have arrived, behind unanswered requests
            self._head_timer = self.loop.call_later(self._head_seconds, self._head_is_late)
            return
        seconds = self._head_seconds
        self._refuse(TooSlow(f"The request's headers did not arrive within {seconds:g} s."))

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_writing(self, unsent: int | None) -> None:
        """Abort unless the peer reads some of the `unsent` bytes in time; None stops watching."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if unsent is not None:
            self._write_timer = self.loop.call_later(
                self._idle_seconds, self._check_writing, unsent
            )

    def _check_writing(self, previous: int) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent >= previous:
            self.transport.abort()
        else:
            self._watch_writing(unsent)

    # Closing

    def _refuse_head(self) -> None:
        self._refuse(
            HeadersTooLarge(f"The request's headers have more than {MAX_HEAD_BYTES} bytes.")
        )

    def _refuse(self, error: PubSwapError, status: int | None = None) -> None:
        """Refuse a request that cannot be parsed; an application reading its body is cut off."""
        if self._last_words is not None:
            return
        words = _answer(error, status or error.status)
        if self._in_body and not self.cycle.response_complete:
            words = b"" if self.cycle.response_started else words
            _disconnect(self._unanswered.pop())
            if self.pipeline:  # it is the last one there, and must not start
                self.pipeline.popleft()
        self._end(words)

    def _end(self, words: bytes) -> None:
        """Read no more; send `words` and close once all earlier requests are answered."""
        self._last_words = words
        self._stop_head_timer()
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
