"""One request to the coordinator: its encoding, its retries, and its errors as our own tree."""

import re
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Self, TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from pubswap_client.coordinator.retry import FOREVER, Backoff, retrying
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    InvalidSettings,
    ProblemDetails,
    PubSwapError,
    ServerFault,
    UnknownSetting,
    Unreachable,
    error_for,
)

M = TypeVar("M", bound=BaseModel)

OnSend = Callable[[str, str, str, Iterable[bytes]], None]
"""Called with method, path and query, media type and body before each request; may raise."""

Withhold = Callable[[Any], Any]
"""Gives a message with counters back without those that may not be sent."""

LONG_POLL_SECONDS = 25.0
LONGEST_RETRY_AFTER = 3600.0


@cache
def _public_authorities() -> ssl.SSLContext:
    """httpx's default; to read it takes longer than most requests."""
    return httpx.create_ssl_context()


class Connection:
    """A coordinator, as seen by the holder of one token. Synchronous, and closed after use."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        backoff: Backoff = FOREVER,
        transport: httpx.BaseTransport | None = None,
        tls: TlsFiles | None = None,
        on_send: OnSend | None = None,
        withhold: Withhold = lambda message: message,
    ) -> None:
        headers = {paths.PROTOCOL_HEADER: paths.PROTOCOL_VERSION}
        if token and not (token.isascii() and token.isprintable()):
            raise InvalidSettings("The token has characters that no token has; copy all of it.")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self.url = url.rstrip("/")
        self.backoff = backoff
        self.sent = self.received = 0  # bytes of bodies, also of those that were sent again
        self._counting = threading.Lock()
        self._on_send = on_send
        self.withhold = withhold
        self._http = httpx.Client(
            base_url=_parsed_url(self.url),
            headers=headers,
            transport=transport,
            verify=tls.context() if tls else _public_authorities(),
            timeout=httpx.Timeout(LONG_POLL_SECONDS + 30, connect=10),
            event_hooks={"request": [self._before_sending], "response": [self._count]},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(
        self,
        answer: type[M],
        method: str,
        path: str,
        body: BaseModel | bytes | None = None,
        key: str | None = None,
        **params: Any,
    ) -> M:
        """The parsed answer to a `request`."""
        return parse(answer, self.request(method, path, body, key, **params))

    def request(
        self,
        method: str,
        path: str,
        body: BaseModel | bytes | None = None,
        key: str | None = None,
        headers: Mapping[str, str] = {},
        **params: Any,
    ) -> httpx.Response:
        """The answer to a request, tried again while it fails with a retryable error.

        A body of bytes is tensors, whose digest is the idempotency key.
        """
        sent = dict(headers)
        if isinstance(body, bytes):
            key, sent["Content-Type"] = digest_of(body), paths.TENSORS_TYPE
        if key is not None:
            sent[paths.IDEMPOTENCY_HEADER] = key
        options: dict[str, Any] = {
            "content": body if isinstance(body, bytes) else None,
            "json": body.model_dump(mode="json") if isinstance(body, BaseModel) else None,
            "params": {name: value for name, value in params.items() if value is not None},
            "headers": sent,
        }
        return retrying(lambda: self.once(method, path, **options), self.backoff)

    def once(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One try, with httpx's own options; raises what the coordinator refuses it with."""
        with self._reaching():
            reply = self._http.request(method, path, **options)
        if reply.status_code >= 400:
            raise _error(reply)
        return reply

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """One try at an answer whose body is read as it arrives."""
        with self._reaching(), self._http.stream("GET", path, headers=headers) as reply:
            if reply.status_code >= 400:
                reply.read()
                raise _error(reply)
            yield reply

    def _before_sending(self, request: httpx.Request) -> None:
        if self._on_send is not None:
            target = request.url.raw_path.decode("ascii")
            media_type = request.headers.get("Content-Type", "")
            # Read here and again to be sent, so it must be no generator.
            body = cast(httpx.SyncByteStream, request.stream)
            self._on_send(request.method, target, media_type, body)

    def _count(self, reply: httpx.Response) -> None:
        with self._counting:  # heartbeats have a thread of their own
            self.sent += int(reply.request.headers.get("Content-Length", 0))
            self.received += int(reply.headers.get("Content-Length", 0))

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise Unreachable(
                f"The coordinator at {self.url} cannot be reached ({error}). "
                "Is it running, and is the address right?"
            ) from None


def parse(model: type[M], reply: httpx.Response) -> M:
    """An answer's message, without the fields that a later version may have added to it."""
    try:
        return model.model_validate_json(reply.content, extra="ignore")
    except ValidationError as error:
        location = [str(part) for part in error.errors()[0]["loc"]]
        if "settings" in location:
            name = ".".join(location[location.index("settings") + 1 :])
            raise UnknownSetting(
                f"The run's {name} has a value that this version of pubswap does not know. "
                "Upgrade pubswap to the coordinator's version."
            ) from None
        raise ServerFault(f"{reply.url.path} answered something else: {error}") from None


def _parsed_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidSettings(f"{url!r} is no coordinator's address: {error}.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidSettings(f"{url!r} is no coordinator's address, such as https://host:8470.")
    return parsed


def _error(reply: httpx.Response) -> PubSwapError:
    # An hour of Retry-After is believed; its other form, a date, is not read.
    header = reply.headers.get("Retry-After", "")
    seconds = float(header) if re.fullmatch(r"[0-9]{1,9}", header) else None
    wait = None if seconds is None else min(seconds, LONGEST_RETRY_AFTER)
    try:
        return error_for(ProblemDetails.model_validate_json(reply.content), wait)
    except ValidationError:
        return ServerFault(
            f"{reply.request.method} {reply.url} answered {reply.status_code} without a "
            "problem+json body; is there something else at this address?"
        )
