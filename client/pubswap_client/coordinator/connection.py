"""Requests to the coordinator: encoding, retries, and errors as PubSwap's own classes."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from pubswap_client.coordinator.bucket import Allowed, Bucket, Hooks
from pubswap_client.coordinator.retry import FOREVER, Backoff, retrying
from pubswap_client.coordinator.route import (
    LONG_POLL_SECONDS,
    UNANSWERED,
    open_http,
    parsed_url,
    proxy_to,
)
from pubswap_client.coordinator.tls import PUBLIC, TlsFiles
from pubswap_protocol import paths
from pubswap_protocol.bounds import MAX_MEMBER_MESSAGE, VALUE_LIMITS, too_many_values
from pubswap_protocol.errors import (
    InvalidSettings,
    ProblemDetails,
    ProxyFault,
    PubSwapError,
    ServerFault,
    UnknownSetting,
    Unreachable,
    error_for,
    first_fault,
)
from pubswap_protocol.methods.registry import read_newer

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")

OnSend = Callable[[str, str, str, Iterable[bytes]], None]
"""Called with method, path and query, media type and body before each request; may raise."""

SHORTEST_CUT_SECONDS = 2.0  # a long poll that fails sooner was not cut for its length
LONGEST_RETRY_AFTER = 3600.0
LARGEST_MESSAGE = 1 << 28  # bytes of an answer that is read whole
LARGEST_REFUSAL = 1 << 20
LONGEST_REASON = 300  # characters of a validation error
LONGEST_HEAD = 1 << 14  # bytes of a page that are searched for its title


class Connection:
    """A coordinator, as seen by the holder of one token. Synchronous; close it after use."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        backoff: Backoff = FOREVER,
        transport: httpx.BaseTransport | None = None,
        tls: TlsFiles = PUBLIC,
        on_send: OnSend | None = None,
        buckets: Allowed = tuple,
    ) -> None:
        headers = {paths.PROTOCOL_HEADER: paths.PROTOCOL_VERSION, "Accept-Encoding": "identity"}
        token = token and token.strip()  # a pasted token may end with a space, which headers forbid
        if token and not (token.isascii() and token.isprintable()):
            raise InvalidSettings("The token has characters that no token has; copy it again.")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self.url = url.rstrip("/")
        self.backoff = backoff
        self.sent = self.received = 0  # bytes of bodies, including retries
        self._counting = threading.Lock()
        self._cut = False  # whether a cut long poll was logged
        self._on_send = on_send
        # Operators get lists.
        self._max_bytes = LARGEST_MESSAGE if on_send is None else MAX_MEMBER_MESSAGE
        address = parsed_url(self.url)
        self._proxy = None if transport else proxy_to(address, tls)
        hooks: Hooks = {"request": [self._before_sending_to_bucket], "response": [self._count]}
        self.bucket = Bucket(tuple if transport else buckets, tls, hooks)
        self._http = open_http(
            address,
            tls,
            self._proxy,
            base_url=address,
            headers=headers,
            transport=transport,
            event_hooks={"request": [self._before_sending], "response": [self._count]},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bucket.close()
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
        """The parsed answer; one that cannot be parsed is retried like a failed request."""
        read = partial(parse, answer, for_member=self._on_send is not None)
        return self._retried(read, method, path, body, key=key, **params)

    def request(
        self,
        method: str,
        path: str,
        body: BaseModel | bytes | None = None,
        key: str | None = None,
        headers: Mapping[str, str] = {},
        max_bytes: int | None = None,
        **params: Any,
    ) -> httpx.Response:
        """The answer to a request, tried again while it fails with a retryable error.

        A body of bytes is sent as tensors.
        """
        return self._retried(
            lambda reply: reply,
            method,
            path,
            body,
            key=key,
            headers=headers,
            max_bytes=max_bytes,
            **params,
        )

    def _retried(
        self,
        read: Callable[[httpx.Response], R],
        method: str,
        path: str,
        body: BaseModel | bytes | None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] = {},
        max_bytes: int | None = None,
        **params: Any,
    ) -> R:
        sent = dict(headers)
        if isinstance(body, bytes):
            sent["Content-Type"] = paths.TENSORS_TYPE
        if key is not None:
            sent[paths.IDEMPOTENCY_HEADER] = key
        options: dict[str, Any] = {
            "content": body if isinstance(body, bytes) else None,
            "json": body.model_dump(mode="json") if isinstance(body, BaseModel) else None,
            "params": {name: value for name, value in params.items() if value is not None},
            "headers": sent,
            "max_bytes": max_bytes,
        }
        attempt = self._polled if "wait" in params else self.once
        return retrying(lambda: read(attempt(method, path, **options)), self.backoff)

    def once(
        self, method: str, path: str, max_bytes: int | None = None, **options: Any
    ) -> httpx.Response:
        """Send a request once, with httpx's own options; raises the coordinator's refusal.

        Raises ServerFault as soon as the answer exceeds `max_bytes`.
        """
        max_bytes = self._max_bytes if max_bytes is None else max_bytes
        with self._reaching(), self._http.stream(method, path, **options) as streamed:
            reply = _read(
                streamed, max_bytes if streamed.is_success else min(max_bytes, LARGEST_REFUSAL)
            )
        self._check(reply)
        return reply

    def _polled(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to a long poll; if a proxy cuts it for its length, repeat it at once."""
        while True:
            began = time.monotonic()
            try:
                return self.once(method, path, **options)
            except (Unreachable, ProxyFault) as error:
                took = time.monotonic() - began
                if not (SHORTEST_CUT_SECONDS < took < LONG_POLL_SECONDS and _was_cut(error)):
                    raise
                level = logging.DEBUG if self._cut else logging.INFO
                log.log(level, "A long poll was cut after %.0f s. %s", took, error.detail)
                self._cut = True

    @contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str], **params: Any
    ) -> Iterator[httpx.Response]:
        """Send a GET request once; its answer's body is read as it arrives."""
        asked = self._http.stream("GET", path, headers=headers, params=params)
        with self._reaching(), asked as reply:
            if reply.status_code != 307 or "direct" not in params:
                if not reply.is_success or _is_page(reply):
                    reply = _read(reply, LARGEST_REFUSAL)
                self._check(reply)
            yield reply

    def _before_sending(self, request: httpx.Request) -> None:
        # The policy and the ledger expect a path relative to the coordinator's address.
        below = self._http.base_url.raw_path.rstrip(b"/")
        self._tell(request, request.url.raw_path.removeprefix(below).decode("ascii"))

    def _before_sending_to_bucket(self, request: httpx.Request) -> None:
        self._tell(request, str(request.url.copy_with(query=None)))  # the query is secret

    def _tell(self, request: httpx.Request, target: str) -> None:
        if self._on_send is not None:
            media_type = request.headers.get("Content-Type", "")
            # The body is read here and again to be sent, so it must not be a generator.
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
        except httpx.ProxyError as error:  # the proxy opened no tunnel
            raise ProxyFault(
                f"The coordinator at {self.url} cannot be reached{self._by_proxy} ({error}). "
                f"{_PROXY_ADVICE}"
            ) from error
        except UNANSWERED as error:
            raise Unreachable(
                f"The coordinator at {self.url} cannot be reached{self._by_proxy} ({error}). "
                f"{_advice(error)}"
            ) from error

    @property
    def _by_proxy(self) -> str:
        return f" through the proxy {self._proxy.url}" if self._proxy else ""

    def _check(self, reply: httpx.Response) -> None:
        """Raise the coordinator's refusal, or ProxyFault if something else answered."""
        if reply.is_success and not _is_page(reply):
            return
        # Respect at most an hour of Retry-After. Its other form, a date, is ignored.
        header = reply.headers.get("Retry-After", "")
        whole = re.fullmatch(r"[0-9]{1,9}", header)
        wait = min(float(header), LONGEST_RETRY_AFTER) if whole else None
        try:
            problem = ProblemDetails.model_validate_json(reply.content)
        except ValidationError:
            asked = f"{reply.request.method} {reply.url}{self._by_proxy}"
            raise ProxyFault(
                f"{asked} was answered {reply.status_code}{_quoted(reply)}, not by a coordinator. "
                + (_PROXY_ADVICE if self._proxy else _ADDRESS_ADVICE),
                retry_after=wait,
            ) from None
        raise error_for(problem, wait)


def _read(reply: httpx.Response, max_bytes: int) -> httpx.Response:
    """Read an answer with its body; raises ServerFault if it exceeds `max_bytes`.

    The body is not decompressed, because a few bytes could expand to any number.
    """
    if (encoding := reply.headers.get("Content-Encoding", "identity")) != "identity":
        raise ProxyFault(
            f"{reply.url.path} was answered {reply.status_code} with Content-Encoding {encoding}, "
            f"which was not requested, so not by a coordinator. {_ADDRESS_ADVICE}"
        )
    pieces, size = list[bytes](), 0
    for piece in reply.iter_bytes():
        size += len(piece)
        if size > max_bytes:
            raise ServerFault(f"{reply.url.path} was answered with more than {max_bytes:,} bytes.")
        pieces.append(piece)
    return httpx.Response(
        reply.status_code, headers=reply.headers, content=b"".join(pieces), request=reply.request
    )


def parse(model: type[M], reply: httpx.Response, for_member: bool = True) -> M:
    """Parse an answer, ignoring fields that a later version may have added.

    With `for_member`, raises ServerFault for more values than a member's memory has room for.
    """
    if for_member and too_many_values(reply.content):
        raise ServerFault(f"{reply.url.path} was answered with more than {VALUE_LIMITS}.")
    try:
        return read_newer(model, reply.content)
    except ValidationError as error:
        location = [str(part) for part in error.errors()[0]["loc"]]
        if "settings" in location:
            name = ".".join(location[location.index("settings") + 1 :])
            unknown = f"{name} has a value" if name else "settings are a combination"
            raise UnknownSetting(
                f"The run's {unknown} that this version of pubswap does not know. "
                "Upgrade pubswap to the coordinator's version."
            ) from None
        fault = first_fault(error)[:LONGEST_REASON]
        raise ServerFault(f"{reply.url.path} gave an unexpected answer: {fault}") from None


def _is_page(reply: httpx.Response) -> bool:
    """Whether an answer is an HTML page: a proxy's, because the coordinator's API sends none."""
    return "html" in reply.headers.get("Content-Type", "")


def _quoted(reply: httpx.Response) -> str:
    """A page's title, or a redirect's target, in a few printable words.

    Only the beginning is read, as UTF-8, because a page may declare a charset that decompresses.
    """
    head = reply.content[:LONGEST_HEAD].decode(errors="replace")
    title = re.search(r"<title[^>]*>([^<]*)", head, re.IGNORECASE)
    text = title[1] if title else reply.headers.get("Location", "")
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())[:100]
    return f" (“{words}”)" if words else ""


def _was_cut(error: PubSwapError) -> bool:
    """Whether a request arrived, but its answer was lost or replaced by a proxy's."""
    if error.__cause__ is None:
        return isinstance(error, ProxyFault)
    return isinstance(error.__cause__, httpx.RemoteProtocolError | httpx.ReadError)


_PROXY_ADVICE = (
    "Give the proxy's user and password in HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT), ask those "
    "who run it to let the coordinator through, or name the coordinator's host in NO_PROXY."
)
# OpenSSL's reasons, before and since 3.2, when the answer is not TLS.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_ADDRESS_ADVICE = "Is there something else at this address, or a proxy in front of it?"


def _advice(error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return (
            "Name the CA of its certificate, or of a proxy that intercepts TLS, with `--ca-file` "
            "(an organisation does so when it enrols) or in SSL_CERT_FILE."
        )
    if any(reason in str(error) for reason in _NOT_TLS):
        return "Does it serve plain http? Then its address begins with http://."
    return "Is it running, and is the address right?"
