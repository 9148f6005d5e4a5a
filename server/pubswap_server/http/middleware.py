"""Pure ASGI middleware: deadlines, request ids, limits, the handshake, logs and metrics."""

import asyncio
import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pubswap_protocol.errors import (
    Invalid,
    ProtocolMismatch,
    PubSwapError,
    ServerFault,
    TooSlow,
    UnsupportedEncoding,
)
from pubswap_protocol.paths import HEARTBEAT, PROTOCOL_HEADER, PROTOCOL_VERSION, REQUEST_ID_HEADER
from pubswap_server.http.problems import SAFETY_HEADERS, refusal
from pubswap_server.monitoring.logs import REQUEST
from pubswap_server.monitoring.metrics import Metrics
from pubswap_server.notifications import LoopThrottle

log = structlog.get_logger(__name__)

CLIENT_CLOSED = 499  # nginx's status for a client that disconnected; only logged and counted
IDLE_SECONDS = 30.0  # longest pause in a body
# The time spent waiting for each PIECE_BYTES of a body is limited: at least 17 KiB/s.
PIECE_BYTES = 1 << 20
PIECE_SECONDS = 60.0
# How much of an unread body to drain after the response. Closing at once would reset the
# connection, and the client could lose the response.
LINGER_BYTES = 64 << 20

_HEARTBEAT = re.compile(HEARTBEAT.format(run="[^/]+"))
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestThrottle:
    """Start only a few requests at a time, however many arrive at once; heartbeats never wait."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._turns = LoopThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_heartbeat(scope):
            await self._turns.take()
        await self.app(scope, receive, send)


class BodyDeadlines:
    """Time out slow request bodies, and close a connection whose response left one unread.

    There is no limit on a request's total time: a long poll may wait, an upload that progresses may
    take hours, and only time spent waiting for the peer counts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
            await self.app(scope, receive, send)
            return
        body = _Body(receive)
        held_back = False

        async def closing(message: Message) -> None:
            nonlocal held_back
            if message["type"] == "http.response.start" and body.unread:
                MutableHeaders(scope=message)["Connection"] = "close"
            elif body.unread and not message.get("more_body", False):
                held_back = True
                message = {**message, "more_body": True}
            await send(message)

        await self.app(scope, body.receive, closing)
        if held_back:
            await body.linger()
            await send({"type": "http.response.body"})


class _Body:
    def __init__(self, receive: Receive) -> None:
        self.unread = True
        self._receive = receive
        self._piece_bytes, self._waited = 0, 0.0  # of the piece under way

    async def receive(self) -> Message:
        """The next message; raises HTTPException (408) if it does not arrive in time."""
        if not self.unread:
            return await self._receive()
        started = time.monotonic()
        try:
            async with asyncio.timeout(min(IDLE_SECONDS, PIECE_SECONDS - self._waited)):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(
                TooSlow.status,
                f"the body stopped for {IDLE_SECONDS:g} s, or {PIECE_BYTES} bytes of it took "
                f"{PIECE_SECONDS:g} s; an upload session keeps the bytes it has",
            ) from None
        self._waited += time.monotonic() - started
        self._piece_bytes += len(message.get("body", b""))
        if self._piece_bytes >= PIECE_BYTES:
            self._piece_bytes, self._waited = 0, 0.0
        self.unread = message.get("more_body", False)
        return message

    async def linger(self) -> None:
        """Drain the rest of the body, unless it is too slow or too large."""
        size = 0
        while self.unread and size < LINGER_BYTES:
            try:
                size += len((await self.receive()).get("body", b""))
            except HTTPException:
                return


def is_heartbeat(scope: Scope) -> bool:
    """Whether a request is a heartbeat, and so must not wait behind others."""
    return _HEARTBEAT.fullmatch(scope["path"]) is not None


class RequestLog:
    """Give each request an id, and write its log line and metrics."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        requested = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = requested if _REQUEST_ID.fullmatch(requested) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started, status, answering = time.monotonic(), 500, False
        received = sent = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def watched(message: Message) -> None:
            nonlocal status, answering, sent
            sent += len(message.get("body", b""))
            if message["type"] == "http.response.start":
                status, answering = message["status"], True
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                for name, value in SAFETY_HEADERS.items():
                    headers.setdefault(name, value)  # pages set their own policy
            try:
                await send(message)
            except RuntimeError as error:
                # uvicorn has closed the connection, because it could not parse what came next.
                if "closed" in str(error):
                    raise ClientDisconnect from None
                raise

        try:
            await self.app(scope, counted, watched)
        except ClientDisconnect:
            status = CLIENT_CLOSED
        except Exception as error:
            # Caught here because Starlette's own reply would lack the id and the headers.
            log.error("request failed", exc_info=error)
            if answering:
                raise
            await refusal(ServerFault(), scope)(scope, receive, watched)
        finally:
            seconds = time.monotonic() - started
            # Unknown paths share one label; otherwise anybody could create labels without limit.
            route = getattr(scope.get("route"), "path", "unknown")
            self.metrics.requests.labels(route, scope["method"], status).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            self.metrics.body_bytes.labels(route, "in").inc(received)
            self.metrics.body_bytes.labels(route, "out").inc(sent)
            log.info(
                REQUEST,
                method=scope["method"],
                route=route,
                status=status,
                seconds=round(seconds, 4),
            )


class RequestChecks:
    """Refuse what no route accepts: other protocols, encoded bodies."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            _check(headers, scope)
        except PubSwapError as error:
            await refusal(error, scope)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _check(headers: Headers, scope: Scope) -> None:
    hosts = len(headers.getlist("host"))
    if hosts > 1 or (hosts == 0 and scope["http_version"] != "1.0"):
        raise Invalid(f"Send one Host header, not {hosts}.")
    # PostgreSQL rejects text with a NUL, even in a comparison.
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        raise Invalid("The URL contains a NUL character.")
    spoken = headers.get(PROTOCOL_HEADER)
    if spoken not in (None, PROTOCOL_VERSION):
        raise ProtocolMismatch(
            f"This coordinator speaks protocol {PROTOCOL_VERSION}, the client {spoken}; "
            "install the coordinator's version of pubswap."
        )
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise UnsupportedEncoding(f"Send the body as it is, without Content-Encoding {encoding}.")
