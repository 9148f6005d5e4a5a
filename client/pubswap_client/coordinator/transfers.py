"""Adapters over a connection that may be cut at any byte: both ways go on where they stopped.

What one request is, `client.py` knows; here is only which one comes next. A body is held once:
chunks are views of it, and what arrives is written to its place in a buffer of the whole size.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pubswap_client.coordinator.retry import Backoff, RetryState
from pubswap_protocol.digests import Digester
from pubswap_protocol.errors import (
    DigestMismatch,
    PubSwapError,
    ServerFault,
    UnknownUpload,
    WrongOffset,
)
from pubswap_protocol.messages import OpenUpload, UploadSession

Moved = Callable[[int, int], None]
"""Called with the bytes done so far and the bytes in all."""

TOLD_BYTES = 4 << 20
QUICK_SECONDS = 1.0


def untold(done: int, total: int) -> None:
    """A `Moved` that tells nobody."""


@dataclass(slots=True)
class Body:
    """A part of a blob as it arrives, from byte `first` to the end of `total`."""

    first: int
    total: int
    chunks: Iterator[bytes]


class BlobRequests(Protocol):
    """The requests about one run's blobs: each is one try, and raises what went wrong."""

    def open(self, wanted: OpenUpload) -> UploadSession:
        """A new session, or the one that is open for this digest."""
        ...

    def send(self, upload: str, first: int, chunk: memoryview) -> None:
        """Add a chunk to a session, from byte `first` of the blob."""
        ...

    def finish(self, upload: str, digest: str) -> None:
        """Make a blob of a session that is complete."""
        ...

    def stream(self, digest: str, first: int) -> AbstractContextManager[Body]:
        """A blob's bytes from `first` on, or from 0 if the coordinator cannot begin there."""
        ...


def upload(
    requests: BlobRequests,
    data: bytes | memoryview,
    digest: str,
    backoff: Backoff,
    moved: Moved = untold,
) -> None:
    """Send a blob unless the coordinator has it from us.

    After any failure the session is opened again, which says how far it came, or begins a new one
    where it has expired. Tries are counted from the last byte that arrived.
    """
    view = memoryview(data)
    patience = RetryState(backoff, UnknownUpload, WrongOffset)
    mismatches = furthest = 0
    while True:
        try:
            session = requests.open(OpenUpload(digest=digest, size=len(view)))
            if session.offset > furthest:
                furthest = session.offset
                patience.renew()
            if not session.stored:
                _send_rest(requests, session, view, moved)
            moved(len(view), len(view))
            return
        except DigestMismatch:
            mismatches += 1
            if mismatches > 1:  # once is the wire's fault, twice is ours
                raise
        except PubSwapError as error:
            patience.wait(error)


def _send_rest(
    requests: BlobRequests, session: UploadSession, view: memoryview, moved: Moved
) -> None:
    assert session.upload is not None, "a session without an id is of a blob that is stored"
    first, size = session.offset, session.chunk_bytes
    while first < len(view):
        moved(first, len(view))
        began = time.monotonic()
        requests.send(session.upload, first, view[first : first + size])
        first += size
        # On a fast link a request costs more than its bytes do; on a slow one a chunk is small, so
        # that its end can be waited for, and little is lost with it where a proxy held it back.
        if time.monotonic() - began < QUICK_SECONDS:
            size = min(2 * size, session.largest_chunk_bytes)
    requests.finish(session.upload, session.digest)


def download(
    requests: BlobRequests, digest: str, backoff: Backoff, moved: Moved = untold
) -> memoryview:
    """A blob's bytes, read-only, once they have the digest; raises DigestMismatch if they do not.

    After a cut the rest is asked for, whatever was cut.
    """
    patience = RetryState(backoff)
    for mismatches in (0, 1):  # once is the wire's fault, twice is the coordinator's
        arriving = Download()
        while not arriving.complete:
            try:
                with requests.stream(digest, arriving.filled) as body:
                    arriving.take(body, moved, patience)
            except PubSwapError as error:
                patience.wait(error)
        if arriving.digest() == digest:
            break
        if mismatches:
            raise DigestMismatch(f"The coordinator sent other bytes than {digest}.")
    return arriving.data


class Download:
    """A blob that is being received, and hashed as it comes."""

    def __init__(self) -> None:
        self._known = False
        self._begin(0)

    def _begin(self, total: int) -> None:
        # Numpy asks for huge pages, of which far fewer must be touched for the first time.
        self._buffer = np.empty(total, np.uint8).data
        self._digester = Digester()
        self.filled = 0

    @property
    def complete(self) -> bool:
        """Whether all of it is here, also if the connection was cut right after the last byte."""
        return self._known and self.filled == len(self._buffer)

    @property
    def data(self) -> memoryview:
        """What has arrived, read-only."""
        return self._buffer.toreadonly()

    def digest(self) -> str:
        """The digest of what has arrived."""
        return self._digester.digest()

    def take(self, body: Body, moved: Moved, patience: RetryState) -> None:
        """Put a body's bytes in their place; what came before a cut stays.

        Raises ServerFault, and forgets what came, if the body is not the rest of it.
        """
        if body.first == 0:
            self._begin(body.total)
        elif (body.first, body.total) != (self.filled, len(self._buffer)):
            self._forget()
            raise ServerFault("The coordinator sent another part of the blob than was asked for.")
        self._known = True
        try:
            self._fill(body, moved, patience)
        except ServerFault:
            self._forget()
            raise
        moved(self.filled, body.total)

    def _forget(self) -> None:
        self._known = False
        self._begin(0)

    def _fill(self, body: Body, moved: Moved, patience: RetryState) -> None:
        told = self.filled
        for chunk in body.chunks:
            end = self.filled + len(chunk)
            if end > body.total:
                raise ServerFault("The coordinator sent more than the whole blob.")
            self._buffer[self.filled : end] = chunk
            self._digester.update(chunk)
            self.filled = end
            patience.renew()
            if self.filled - told >= TOLD_BYTES:
                moved(self.filled, body.total)
                told = self.filled
