"""Resumable uploads and downloads of adapters, over a connection that may be cut at any byte.

A body is held in memory once: chunks to send are views of it, and received bytes are written into a
buffer of the full size.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import numpy as np

from pubswap_client.coordinator.connection import Connection, parse
from pubswap_client.coordinator.retry import Backoff, RetryState
from pubswap_protocol import paths
from pubswap_protocol.digests import Digester
from pubswap_protocol.errors import (
    DigestMismatch,
    PubSwapError,
    ServerFault,
    UnknownUpload,
    Unreachable,
    WrongOffset,
)
from pubswap_protocol.messages import BlobReceipt, OpenUpload, UploadPart, UploadSession

OnBytes = Callable[[int, int], None]
"""Called with the bytes done so far and the total."""

# Larger blocks are not sent faster, and httpcore copies the rest of a block that the socket accepts
# only in part.
BLOCK_BYTES = 1 << 18
REPORT_BYTES = 4 << 20
LARGEST_BYTES = 1 << 36  # of a blob, whose buffer is allocated before its first byte arrives
QUICK_SECONDS = 1.0
MAX_CHUNKS = 1 << 16  # of a blob, because each is an entry in the ledger


@dataclass(slots=True)
class Body:
    """The rest of a blob of `total` bytes as it arrives, from byte `first`."""

    first: int
    total: int
    chunks: Iterator[bytes]


@dataclass(frozen=True)
class BlobRequests:
    """Requests for one run's blobs, each tried once."""

    connection: Connection
    run: str
    path: str | None = None  # of a download, if it is not the blob's own
    max_bytes: int = LARGEST_BYTES  # of a download

    def open(self, request: OpenUpload) -> UploadSession:
        """Open an upload session, or return the one that is open for this digest."""
        path, params = paths.UPLOADS.format(run=self.run), self._direct()
        json = request.model_dump(mode="json")
        session = parse(UploadSession, self.connection.once("POST", path, json=json, params=params))
        if session.upload is None and not session.stored:
            raise ServerFault(f"{path} gave no session for a blob that is not stored.")
        sizes = [session.chunk_bytes, session.largest_chunk_bytes]
        sizes += [part.size for part in session.parts if part.first + part.size < request.size]
        if min(sizes) < request.size / MAX_CHUNKS:
            raise ServerFault(f"{path} wants a blob of {request.size:,} bytes in tiny chunks.")
        allowed = map(self.connection.bucket.allows, (part.url for part in session.parts))
        return session if all(allowed) else session.model_copy(update={"parts": []})

    def put(self, part: UploadPart, chunk: memoryview) -> None:
        self.connection.bucket.put(part.url, chunk, BLOCK_BYTES)

    def send(self, upload: str, first: int, chunk: memoryview) -> None:
        """Add a chunk to a session, at byte `first` of the blob."""
        headers = {
            "Content-Range": f"{first}-{first + len(chunk) - 1}",
            "Content-Length": str(len(chunk)),
            "Content-Type": "application/octet-stream",
        }
        blocks = [chunk[at : at + BLOCK_BYTES] for at in range(0, len(chunk), BLOCK_BYTES)]
        path = paths.UPLOAD.format(run=self.run, upload=upload)
        self.connection.once("PATCH", path, content=blocks, headers=headers)

    def finish(self, upload: str, digest: str) -> None:
        path = paths.UPLOAD.format(run=self.run, upload=upload)
        parse(BlobReceipt, self.connection.once("PUT", path, params={"digest": digest}))

    @contextmanager
    def stream(self, digest: str, first: int) -> Iterator[Body]:
        """A blob's bytes from `first` on, or from 0 if the coordinator cannot begin there."""
        headers = {"Range": f"bytes={first}-", "If-Range": f'"{digest}"'} if first else {}
        path = self.path or paths.BLOB.format(run=self.run, digest=digest)
        bucket, params = self.connection.bucket, {} if self.path else self._direct()
        with self.connection.stream(path, headers, **params) as reply:
            if reply.status_code != 307:
                yield Body(*self._extent(reply), reply.iter_raw())
                return
            location = reply.headers.get("Location", "")
        if bucket.allows(location):
            with bucket.stream(location, first) as reply:
                yield Body(*self._extent(reply), reply.iter_raw())
            return
        with self.stream(digest, first) as body:  # `allows` has disabled the bucket
            yield body

    def _extent(self, reply: httpx.Response) -> tuple[int, int]:
        """The offset of an answer's body in the blob, and the blob's size."""
        # rclone answers a range with status 200 and a Content-Range.
        if reply.status_code == 206 or "Content-Range" in reply.headers:
            form, header = r"bytes (\d{1,15})-\d{1,15}/(\d{1,15})", "Content-Range"
        else:
            form, header = r"()(\d{1,15})", "Content-Length"
        match = re.fullmatch(form, reply.headers.get(header, ""))
        if match is None:
            raise ServerFault(f"{reply.url.path} answered without a usable {header}.")
        total = int(match[2])
        if total > self.max_bytes:
            raise ServerFault(
                f"{reply.url.path} announced {total:,} bytes; at most {self.max_bytes:,} are "
                "possible."
            )
        return int(match[1] or 0), total

    def leave_bucket(self, why: str) -> None:
        """Send what follows through the coordinator."""
        self.connection.bucket.leave_alone(why)

    def _direct(self) -> dict[str, str]:
        return {"direct": "true"} if self.connection.bucket.usable else {}


def upload(
    requests: BlobRequests,
    data: bytes | memoryview,
    digest: str,
    backoff: Backoff,
    on_bytes: OnBytes | None = None,
) -> None:
    """Send a blob, unless the coordinator has it from us.

    After any failure, open the session again: that returns how far it got, or a new session if it
    has expired. Tries are counted from the last byte that arrived.
    """
    view = memoryview(data)
    on_bytes = on_bytes or _ignore
    retry = RetryState(backoff, UnknownUpload, WrongOffset)
    mismatches = furthest = 0
    put: tuple[str | None, int] = None, 0  # a session, and the byte up to which a bucket took it
    furthest_put = 0
    while True:
        try:
            session = requests.open(OpenUpload(digest=digest, size=len(view)))
            if session.upload == put[0] and session.offset < put[1]:
                put = None, 0
                requests.leave_bucket("the coordinator does not find the parts that it accepted")
                raise Unreachable("The bucket accepted parts that the coordinator does not find.")
            if session.offset > furthest:
                furthest = session.offset
                retry.reset()
            first = session.offset
            for part in session.parts:
                first = _put(requests, part, first, view, on_bytes)
                put = session.upload, first
            if session.parts and first < len(view):
                if first <= furthest_put:
                    raise Unreachable("The coordinator asks for the same parts again.")
                furthest_put = first
                continue  # the coordinator has to name more parts first
            if not session.stored:
                _send_rest(requests, session, first, view, on_bytes)
            on_bytes(len(view), len(view))
            return
        except DigestMismatch:
            mismatches += 1
            if mismatches > 1:  # once is the wire's fault, twice is ours
                raise
        except PubSwapError as error:
            retry.wait(error)


def _put(
    requests: BlobRequests, part: UploadPart, first: int, view: memoryview, on_bytes: OnBytes
) -> int:
    """Write the next part to the bucket; returns its end."""
    if part.first != first or part.first + part.size > len(view):
        raise ServerFault("The coordinator named parts that are not consecutive.")
    on_bytes(first, len(view))
    requests.put(part, view[first : first + part.size])
    return first + part.size


def _send_rest(
    requests: BlobRequests, session: UploadSession, first: int, view: memoryview, on_bytes: OnBytes
) -> None:
    """Send everything from byte `first` on to the coordinator, and finish the session."""
    assert session.upload is not None, "a session without an id is for a stored blob"
    size = session.chunk_bytes
    while first < len(view):
        on_bytes(first, len(view))
        began = time.monotonic()
        requests.send(session.upload, first, view[first : first + size])
        first += size
        # On a fast link a request costs more than its bytes, so chunks grow. On a slow one they
        # stay small, so that each ends before a timeout, and little is lost if a proxy buffers it.
        if time.monotonic() - began < QUICK_SECONDS:
            size = min(4 * size, session.largest_chunk_bytes)
    requests.finish(session.upload, session.digest)


def download(
    requests: BlobRequests, digest: str, backoff: Backoff, on_bytes: OnBytes | None = None
) -> memoryview:
    """Download a blob, read-only; raises DigestMismatch if its bytes do not have the digest.

    After a cut, only the rest is requested.
    """
    retry = RetryState(backoff)
    for _ in range(2):  # a mismatch is the wire's fault once, the coordinator's twice
        part = _Download()
        while not part.complete:
            try:
                with requests.stream(digest, part.filled) as body:
                    part.take(body, on_bytes or _ignore, retry)
            except PubSwapError as error:
                retry.wait(error)
        if part.digester.digest() == digest:
            return part.buffer.toreadonly()
        # Going through the coordinator lets it notice the damage, and repair it.
        requests.leave_bucket("it returned other bytes than requested")
    raise DigestMismatch(f"The coordinator sent bytes that are not {digest}.")


class _Download:
    """A blob that is being received, and hashed as it arrives."""

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, total: int | None) -> None:
        room = total or 0
        try:
            # NumPy requests huge pages, so far fewer pages fault on first touch.
            self.buffer = np.empty(room, np.uint8).data
        except MemoryError:
            raise ServerFault(
                f"The coordinator announced a blob of {room:,} bytes, which does not fit into the "
                "memory here."
            ) from None
        self._total = total  # None until an answer has announced it
        self.digester = Digester()
        self.filled = 0

    @property
    def complete(self) -> bool:
        """Whether all of it is here, even if the connection was cut right after the last byte."""
        return self.filled == self._total

    def take(self, body: Body, on_bytes: OnBytes, retry: RetryState) -> None:
        """Write a body's bytes into the buffer; bytes from before a cut stay.

        Raises ServerFault, and starts over, if the body is not the rest of the blob.
        """
        if body.first == 0:
            self._begin(body.total)
        elif (body.first, body.total) != (self.filled, self._total):
            self._begin(None)
            raise ServerFault("The coordinator sent another part of the blob than requested.")
        reported = self.filled
        for chunk in body.chunks:
            end = self.filled + len(chunk)
            if end > body.total:
                self._begin(None)
                raise ServerFault("The coordinator sent more than the whole blob.")
            self.buffer[self.filled : end] = chunk
            self.digester.update(chunk)
            self.filled = end
            retry.reset()
            if self.filled - reported >= REPORT_BYTES:
                on_bytes(self.filled, body.total)
                reported = self.filled
        on_bytes(self.filled, body.total)


def _ignore(done: int, total: int) -> None:
    pass
