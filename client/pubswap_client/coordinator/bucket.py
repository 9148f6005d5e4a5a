"""The coordinator's bucket, where an organisation lets its bytes go straight there.

The coordinator gives the addresses, and the organisation says which ones are allowed: they begin
with one that its policy names. No token goes there, and no redirect is followed. Whatever fails
there goes through the coordinator.
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
"""Gives what the addresses begin with that bytes may go to and come from, as the policy has it."""

Hooks = Mapping[str, list[Callable[..., None]]]
"""Called with each request before it is sent, and with each response."""

FAILURES = 3  # in a row, after which it is left alone
AWAY_SECONDS = 600.0


class Bucket:
    """Requests to addresses that the coordinator has signed: each is one try."""

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
    def wanted(self) -> bool:
        """Whether bytes are to go there: one is allowed, and it did not fail lately."""
        return time.monotonic() >= self._away_until and bool(self._allowed())

    def allows(self, url: str) -> bool:
        """Whether the organisation allows this address; if not, the bucket is left alone."""
        try:
            address = httpx.URL(url)
            wanted = str(address)  # with `..` resolved, as it would be asked for
            named = any(wanted.startswith(f"{_normal(one)}/") for one in self._allowed())
            if named and ".." not in address.path.split("/"):  # as a server may read it
                return True
        except httpx.InvalidURL:
            wanted = printable(url)
        self.leave_alone(f"the policy has not {wanted.partition('?')[0]} among its buckets")
        return False

    def put(self, url: str, part: memoryview, block_bytes: int) -> None:
        """Write a part; raises Unreachable unless the bucket says that it has all of it."""
        blocks: Any = [part[at : at + block_bytes] for at in range(0, len(part), block_bytes)]
        # Other checksums are in headers that would have to be signed.
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
                raise _RefusedError("what answered is no S3 store: it gave no ETag")
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
        """Let everything go through the coordinator for a while, if it did not anyhow."""
        if not self._allowed():
            return
        self._failures, self._away_until = 0, time.monotonic() + AWAY_SECONDS
        minutes = AWAY_SECONDS / 60
        log.warning("The bucket is left alone for %.0f minutes: %s.", minutes, why)

    def _http(self, url: str) -> httpx.Client:
        address = httpx.URL(url)
        if address.netloc not in self._clients:
            # It is shown no certificate of ours; its own is a public authority's or our own one's.
            trusted = httpx.create_ssl_context()
            if self._tls.ca_file:
                trusted.load_verify_locations(self._tls.ca_file)
            proxy = proxy_to(address, self._tls)
            http = open_http(address, self._tls, proxy, verify=trusted, event_hooks=self._hooks)
            self._clients[address.netloc] = self._closing.enter_context(http)
        return self._clients[address.netloc]

    @contextmanager
    def _reaching(self, url: str) -> Iterator[None]:
        """Raises Unreachable for whatever fails, and counts; the query is a secret."""
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
    """The bucket has answered otherwise."""


def _require(reply: httpx.Response, statuses: tuple[int, ...]) -> None:
    if reply.status_code not in statuses:
        raise _RefusedError(f"it answered {reply.status_code}")
    if "html" in reply.headers.get("Content-Type", ""):
        raise _RefusedError("a page answered in its place")


def _normal(prefix: str) -> str:
    return str(httpx.URL(prefix)).rstrip("/")
