"""Direct transfers to and from the coordinator's bucket, if the organisation allows them.

The coordinator gives the addresses. The organisation allows those that begin with a prefix in its
policy. No token goes there, and no redirect is followed. A transfer that fails there goes through
the coordinator.
"""

import base64
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx

from pubswap_client.coordinator.route import UNANSWERED, open_http, proxy_to
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_protocol.bounds import printable
from pubswap_protocol.errors import ServerFault, Unreachable

log = logging.getLogger(__name__)

Allowed = Callable[[], Sequence[str]]
"""Returns the prefixes of addresses that the policy allows transfers to and from."""

Hooks = Mapping[str, list[Callable[..., None]]]
"""Called with each request before it is sent, and with each response."""

FAILURES = 3  # in a row, after which the bucket is left alone
AWAY_SECONDS = 600.0


class Bucket:
    """Requests to addresses that the coordinator has signed, each tried once."""

    def __init__(self, allowed: Allowed, tls: TlsFiles, hooks: Hooks) -> None:
        self._allowed = allowed
        self._tls = tls
        self._hooks = hooks
        self._failures = 0
        self._away_until = 0.0
        self._clients: dict[bytes, httpx.Client] = {}
        self._closing = ExitStack()

    def close(self) -> None:
        self._closing.close()

    @property
    def usable(self) -> bool:
        """Whether to use the bucket: one is allowed, and it has not failed recently."""
        return time.monotonic() >= self._away_until and bool(self._allowed())

    def allows(self, url: str) -> bool:
        """Whether the organisation allows this address; if not, leave the bucket alone."""
        try:
            address = httpx.URL(url)
            requested = str(address)  # with `..` resolved, as it would be requested
            named = any(requested.startswith(f"{_normal(listed)}/") for listed in self._allowed())
            if named and ".." not in address.path.split("/"):  # a server may resolve an escaped one
                return True
        except httpx.InvalidURL:
            requested = printable(url)
        self.leave_alone(f"the policy does not list {requested.partition('?')[0]} in its buckets")
        return False

    def put(self, url: str, part: memoryview, block_bytes: int) -> None:
        """Write a part; raises Unreachable unless the bucket confirms that it has all of it."""
        blocks: Any = [part[at : at + block_bytes] for at in range(0, len(part), block_bytes)]
        # Other checksums go into headers that would have to be signed.
        md5 = base64.b64encode(hashlib.md5(part, usedforsecurity=False).digest()).decode()
        headers = {
            "Content-Length": str(len(part)),
            "Content-MD5": md5,
            "Content-Type": "application/octet-stream",
        }
        with self._reaching(url):
            reply = self._http(url).put(url, content=blocks, headers=headers)
            _require(reply, (200, 201, 204))
            if "ETag" not in reply.headers:
                raise _RefusedError("the answer has no ETag, so it is not from an S3 store")
        self._failures = 0

    @contextmanager
    def stream(self, url: str, first: int) -> Iterator[httpx.Response]:
        """A blob's bytes from `first` on, as they arrive."""
        headers = {"Accept-Encoding": "identity"}
        if first:
            headers["Range"] = f"bytes={first}-"
        with self._reaching(url), self._http(url).stream("GET", url, headers=headers) as reply:
            _require(reply, (200, 206))
            yield reply
        self._failures = 0

    def leave_alone(self, why: str) -> None:
        """Send everything through the coordinator for a while; no-op if no bucket is allowed."""
        if not self._allowed():
            return
        self._failures, self._away_until = 0, time.monotonic() + AWAY_SECONDS
        minutes = AWAY_SECONDS / 60
        log.warning("The bucket is left alone for %.0f minutes: %s.", minutes, why)

    def _http(self, url: str) -> httpx.Client:
        address = httpx.URL(url)
        if address.netloc not in self._clients:
            # We present no client certificate. The bucket's own is from a public CA or from ours.
            trusted = httpx.create_ssl_context()
            if self._tls.ca_file:
                trusted.load_verify_locations(self._tls.ca_file)
            proxy = proxy_to(address, self._tls)
            http = open_http(address, self._tls, proxy, verify=trusted, event_hooks=self._hooks)
            self._clients[address.netloc] = self._closing.enter_context(http)
        return self._clients[address.netloc]

    @contextmanager
    def _reaching(self, url: str) -> Iterator[None]:
        """Raise Unreachable for any failure, and count it. The URL's query is secret."""
        try:
            yield
        except (*UNANSWERED, ServerFault, _RefusedError) as error:
            self._failures += 1
            detail = f"{url.partition('?')[0]} failed ({error or type(error).__name__})"
            away = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            if away or self._failures >= FAILURES:
                self.leave_alone(detail)
            raise Unreachable(f"{detail}.") from None


class _RefusedError(Exception):
    """The bucket gave an unexpected answer."""


def _require(reply: httpx.Response, statuses: tuple[int, ...]) -> None:
    if reply.status_code not in statuses:
        raise _RefusedError(f"it answered {reply.status_code}")
    if "html" in reply.headers.get("Content-Type", ""):
        raise _RefusedError("it answered with an HTML page")


def _normal(prefix: str) -> str:
    return str(httpx.URL(prefix)).rstrip("/")
