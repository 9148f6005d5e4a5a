"""The sequence of requests of an upload or download, against an in-memory coordinator that
fails.
"""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubswap_client.coordinator.retry import Backoff
from pubswap_client.coordinator.transfers import QUICK_SECONDS, Body, download, upload
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    DigestMismatch,
    InvalidAdapter,
    NoSpace,
    ServerFault,
    UnknownUpload,
    Unreachable,
    WrongOffset,
)
from pubswap_protocol.messages import OpenUpload, UploadSession
from pubswap_protocol.tensors.adapter import AdapterLayout, encode_adapter

AT_ONCE = Backoff(base_seconds=0.0, tries=3)
CHUNK = 10


@dataclass
class Memory:
    """A fake store of uploads and blobs that cuts each transfer after the next number of bytes in
    `cuts`.

    `raises` holds errors for the next attempts to open a session.
    """

    cuts: list[int] = field(default_factory=list)
    raises: list[Exception] = field(default_factory=list)
    ranges: bool = True
    blobs: dict[str, bytes] = field(default_factory=dict)
    open_: dict[str, bytearray] = field(default_factory=dict)
    taken: int = 0
    opened: int = 0
    chunk: int = CHUNK

    def open(self, request: OpenUpload) -> UploadSession:
        if self.raises:
            raise self.raises.pop(0)
        self.opened += 1
        stored = request.digest in self.blobs
        here = request.size if stored else len(self.open_.setdefault(request.digest, bytearray()))
        return UploadSession(
            upload=None if stored else request.digest,
            digest=request.digest,
            size=request.size,
            offset=here,
            stored=stored,
            chunk_bytes=self.chunk,
            largest_chunk_bytes=4 * self.chunk,
            expires_at=None,
        )

    def send(self, upload: str, first: int, chunk: memoryview) -> None:
        if upload not in self.open_:
            raise UnknownUpload
        if first != len(self.open_[upload]):
            raise WrongOffset
        part = self._cut(bytes(chunk))
        self.taken += len(part)
        self.open_[upload] += part
        if len(part) < len(chunk):
            raise Unreachable("cut")

    def finish(self, upload: str, digest: str) -> None:
        data = bytes(self.open_.pop(upload))
        if digest_of(data) != digest:
            raise DigestMismatch
        self.blobs[digest] = data

    @contextmanager
    def stream(self, digest: str, first: int) -> Iterator[Body]:
        data = self.blobs[digest]
        first = first if self.ranges else 0
        yield Body(first, len(data), self._pieces(data[first:]))

    def leave_bucket(self, why: str) -> None:
        """Do nothing: there is no bucket."""

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        part = self._cut(data)
        for at in range(0, len(part), 3):
            yield part[at : at + 3]
            self.taken += len(part[at : at + 3])
        if len(part) < len(data):
            raise Unreachable("cut")

    def _cut(self, data: bytes) -> bytes:
        return data[: self.cuts.pop(0)] if self.cuts else data


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(1, 12), max_size=8))
def test_an_upload_is_whole_after_any_cuts_and_sends_no_byte_twice(
    data: bytes, cuts: list[int]
) -> None:
    """After each cut it continues from the last byte that the coordinator has."""
    memory = Memory(cuts=cuts)
    upload(memory, data, digest_of(data), AT_ONCE)
    assert memory.blobs == {digest_of(data): data}
    assert memory.taken == len(data)


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(1, 30), max_size=8))
def test_a_download_is_whole_after_any_cuts_and_takes_no_byte_twice(
    data: bytes, cuts: list[int]
) -> None:
    """After each cut only the rest is requested."""
    memory = Memory(cuts=cuts, blobs={digest_of(data): data})
    assert download(memory, digest_of(data), AT_ONCE) == data
    assert memory.taken == len(data)


def test_a_blob_that_is_stored_is_not_sent() -> None:
    """It costs one request and no byte of the blob."""
    memory = Memory(blobs={digest_of(b"data"): b"data"})
    upload(memory, b"data", digest_of(b"data"), AT_ONCE)
    assert (memory.opened, memory.taken) == (1, 0)


def test_an_upload_that_expired_begins_again() -> None:
    """A session that expires midway is replaced by a new one."""
    memory = Memory()
    data = bytes(25)
    send = memory.send

    def expiring(upload: str, first: int, chunk: memoryview) -> None:
        if first == CHUNK and memory.opened == 1:
            del memory.open_[upload]
        send(upload, first, chunk)

    memory.send = expiring  # type: ignore[method-assign]
    upload(memory, data, digest_of(data), AT_ONCE)
    assert memory.blobs == {digest_of(data): data}
    assert memory.opened == 2


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, [10, 40, 40, 40]), (2 * QUICK_SECONDS, [10] * 13)],
    ids=["quick", "slow"],
)
def test_chunks_grow_while_they_are_sent_quickly(
    monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    """By a factor of four each, up to the session's maximum; on a slow link they stay small."""
    memory, sizes, clock = Memory(), list[int](), [0.0]
    send = memory.send
    monkeypatch.setattr("pubswap_client.coordinator.transfers.time.monotonic", lambda: clock[0])

    def noting(upload: str, first: int, chunk: memoryview) -> None:
        sizes.append(len(chunk))
        clock[0] += seconds
        send(upload, first, chunk)

    memory.send = noting  # type: ignore[method-assign]
    data = bytes(130)
    upload(memory, data, digest_of(data), AT_ONCE)
    assert (sizes, memory.blobs) == (expected, {digest_of(data): data})


def test_after_a_cut_chunks_begin_small_again() -> None:
    """The part of a cut request that a proxy held back is sent again, so it should be small."""
    memory, sizes = Memory(cuts=[10, 40, 0]), list[int]()
    send = memory.send

    def noting(upload: str, first: int, chunk: memoryview) -> None:
        sizes.append(len(chunk))
        send(upload, first, chunk)

    memory.send = noting  # type: ignore[method-assign]
    upload(memory, bytes(100), digest_of(bytes(100)), AT_ONCE)
    assert sizes == [10, 40, 40, 10, 40]


def test_a_lost_answer_costs_a_request_and_no_bytes() -> None:
    """Neither an accepted chunk nor a finished blob is sent again."""
    memory = Memory()
    send, finish = memory.send, memory.finish

    def deaf_send(upload: str, first: int, chunk: memoryview) -> None:
        send(upload, first, chunk)
        if memory.opened == 1:
            raise Unreachable("cut")

    def deaf_finish(upload: str, digest: str) -> None:
        finish(upload, digest)
        raise Unreachable("cut")

    memory.send, memory.finish = deaf_send, deaf_finish  # type: ignore[method-assign]
    data = bytes(range(25))
    upload(memory, data, digest_of(data), AT_ONCE)
    assert memory.blobs == {digest_of(data): data}
    assert (memory.taken, memory.opened) == (25, 3)


def test_tries_are_counted_from_the_last_byte_that_arrived() -> None:
    """With three tries, ten cuts with progress succeed; three failures without progress do not."""
    data = bytes(range(100))
    memory = Memory(cuts=[5] * 10)
    upload(memory, data, digest_of(data), AT_ONCE)
    assert memory.blobs
    with pytest.raises(Unreachable):
        upload(Memory(cuts=[5, 0, 0, 0, 0]), data, digest_of(data), AT_ONCE)


def test_a_full_coordinator_is_waited_for() -> None:
    """507 is retried; a refused adapter is not."""
    memory = Memory(raises=[NoSpace(), NoSpace()])
    upload(memory, b"data", digest_of(b"data"), AT_ONCE)
    assert memory.blobs
    refusing = Memory(raises=[InvalidAdapter(), NoSpace()])
    with pytest.raises(InvalidAdapter):
        upload(refusing, b"data", digest_of(b"data"), AT_ONCE)
    assert len(refusing.raises) == 1


@pytest.mark.parametrize(("times", "comes"), [(1, True), (2, False)])
def test_bytes_that_changed_on_the_way_are_sent_once_more(times: int, comes: bool) -> None:
    """The first digest mismatch may be a transmission error; the second is an error."""
    memory = Memory()
    send, left = memory.send, [times]

    def spoiling(upload: str, first: int, chunk: memoryview) -> None:
        spoilt = left[0] > 0
        left[0] -= 1
        send(upload, first, memoryview(bytes(len(chunk))) if spoilt else chunk)

    memory.send = spoiling  # type: ignore[method-assign]
    if comes:
        upload(memory, b"data", digest_of(b"data"), AT_ONCE)
        assert memory.blobs == {digest_of(b"data"): b"data"}
    else:
        with pytest.raises(DigestMismatch):
            upload(memory, b"data", digest_of(b"data"), AT_ONCE)


def test_bytes_that_do_not_match_the_digest_are_never_returned() -> None:
    """They are fetched twice and then refused."""
    memory = Memory(blobs={digest_of(b"this"): b"that"})
    with pytest.raises(DigestMismatch):
        download(memory, digest_of(b"this"), AT_ONCE)
    assert memory.taken == 8


def test_a_coordinator_without_ranges_sends_all_again() -> None:
    """After a cut, the whole body is read from its start."""
    data = bytes(range(50))
    memory = Memory(cuts=[20], ranges=False, blobs={digest_of(data): data})
    assert download(memory, digest_of(data), AT_ONCE) == data


@pytest.mark.parametrize(
    "body",
    [Body(3, 4, iter([b"x"])), Body(0, 4, iter([b"too long"]))],
    ids=["another part", "too long"],
)
def test_a_body_that_was_not_asked_for_is_refused(body: Body) -> None:
    """Neither another range nor too many bytes are accepted."""
    memory = Memory()

    @contextmanager
    def stream(digest: str, first: int) -> Iterator[Body]:
        yield body

    memory.stream = stream  # type: ignore[method-assign]
    with pytest.raises(ServerFault):
        download(memory, digest_of(b"this"), Backoff(tries=1))


def test_uploads_and_downloads_report_progress() -> None:
    """From nothing to the whole."""
    data, seen = bytes(12 << 20), list[tuple[int, int]]()
    memory = Memory()
    upload(memory, data[:25], digest_of(data[:25]), AT_ONCE, lambda *at: seen.append(at))
    assert seen == [(0, 25), (10, 25), (25, 25)]
    memory.blobs[digest_of(data)] = data
    seen.clear()
    download(memory, digest_of(data), AT_ONCE, lambda *at: seen.append(at))
    assert [total for _, total in seen] == [len(data)] * len(seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (len(seen) > 2, seen[-1][0]) == (True, len(data))


def peak_over(call: Callable[[], object]) -> int:
    """Peak memory that a call allocates, in bytes above what was allocated before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_an_adapter_is_in_memory_once() -> None:
    """Encoding and downloading take little more memory than the file, and uploading far less."""
    layout = AdapterLayout(tensors={f"{n}.lora_A.weight": (64, 1024) for n in range(32)})
    adapter = {n: np.ones(shape, np.float32) for n, shape in layout.tensors.items()}
    data = encode_adapter(layout, adapter)
    digest = digest_of(data)
    assert peak_over(lambda: encode_adapter(layout, adapter)) < 1.3 * len(data)
    memory = Memory(blobs={digest: data})

    @contextmanager
    def stream(wanted: str, first: int) -> Iterator[Body]:
        pieces = (data[at : at + 65536] for at in range(0, len(data), 65536))
        yield Body(0, len(data), pieces)

    memory.stream = stream  # type: ignore[method-assign]
    assert peak_over(lambda: download(memory, digest, AT_ONCE)) < 1.1 * len(data)
    taken: list[int] = []
    memory.blobs.clear()
    memory.chunk = 1 << 18
    memory.send = lambda upload, first, chunk: taken.append(len(chunk))  # type: ignore[method-assign]
    memory.finish = lambda upload, digest: None  # type: ignore[method-assign]
    assert peak_over(lambda: upload(memory, data, digest, AT_ONCE)) < 0.5 * len(data)
    assert sum(taken) == len(data)
