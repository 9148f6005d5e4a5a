"""Pure ASGI middleware: request ids, limits, the protocol handshake, logs and metrics."""

import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pubswap_protocol.errors import Invalid, ProtocolMismatch, PubSwapError, TooLarge
from pubswap_protocol.paths import PROTOCOL_HEADER, PROTOCOL_VERSION, REQUEST_ID_HEADER
from pubswap_server.metrics import Metrics
from pubswap_server.problem_json import problem_response

log = structlog.get_logger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Observed:
    """Gives each request an id, and writes its log line and metrics."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application between two looks at the clock."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started, status = time.monotonic(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            seconds = time.monotonic() - started
            # Unknown paths share one label, or anybody could make labels without end.
            route = getattr(scope.get("route"), "path", "unknown")
            self.metrics.requests.labels(route, scope["method"], status).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            log.info(
                "request",
                method=scope["method"],
                route=route,
                status=status,
                seconds=round(seconds, 4),
            )


class Guarded:
    """Refuses what no route takes: other protocols, encoded bodies, huge JSON."""

    def __init__(self, app: ASGIApp, max_json_bytes: int) -> None:
        self.app = app
        self.max_json_bytes = max_json_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers, and the length of a JSON body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check(headers)
            if headers.get("content-type", "").startswith("application/json"):
                receive = _replay(await self._whole(receive))
        except PubSwapError as error:
            problem = error.problem(scope.get("state", {}).get("request_id"))
            await problem_response(problem)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        spoken = headers.get(PROTOCOL_HEADER)
        if spoken not in (None, PROTOCOL_VERSION):
            raise ProtocolMismatch(
                f"This coordinator speaks protocol {PROTOCOL_VERSION}, the client {spoken}; "
                "install the same major version of pubswap."
            )
        if headers.get("content-encoding", "identity") != "identity":
            raise Invalid("Send the body as it is, without Content-Encoding.")

    async def _whole(self, receive: Receive) -> bytes:
        """A JSON body, read here because its parser would keep it whole in any case."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message["type"] == "http.request" and message.get("more_body", False)
            if len(body) > self.max_json_bytes:
                raise TooLarge(f"A JSON body has at most {self.max_json_bytes} bytes.")
        return body


def _replay(body: bytes) -> Receive:
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> Message:
        return next(messages, {"type": "http.disconnect"})

    return replayed
