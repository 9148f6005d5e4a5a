"""Fetches from a bucket, here a slow fake store: each blob once, and none waiting for another."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import HTTPStore, MemoryStore, S3Store

from pubswap_protocol.digests import digest_of, digest_of_file
from pubswap_protocol.errors import DamagedBlob, Unavailable
from pubswap_server.storage import s3
from pubswap_server.storage import store as blob_store
from pubswap_server.storage.s3 import BucketBlobs
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import file_name, folder_name

SECONDS = 0.5
DATA = {digest_of(bytes([n]) * 1000): bytes([n]) * 1000 for n in range(8)}


class SlowStore(BaseHTTPRequestHandler):
    """Answers each request for a blob after a delay, and counts the requests."""

    asked: Counter[str]

    def do_GET(self) -> None:
        """The blob, or 404."""
        name = self.path.rsplit("/", 1)[-1]
        self.asked[name] += 1
        time.sleep(SECONDS)
        body = {file_name(digest): data for digest, data in DATA.items()}.get(name)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 08:00:00 GMT")
        self.end_headers()
        self.wfile.write(body or b"")

    def do_PROPFIND(self) -> None:
        """The names below a folder, as for a blob in parts; there are none."""
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a store and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def asked() -> Counter[str]:
    """How often each file was requested."""
    return Counter()


@pytest.fixture
def blobs(tmp_path: Path, asked: Counter[str]) -> Iterator[BucketBlobs]:
    """A replica's view of the slow store, with room for three blobs."""
    handler = type("Counting", (SlowStore,), {"asked": asked})
    with serving(handler) as url, closing(Spool(tmp_path / "incoming")) as incoming:
        store = HTTPStore.from_url(url, client_options={"allow_http": True})
        yield BucketBlobs(store, tmp_path / "cache", 3000, incoming)


def fetched(blobs: BucketBlobs, digests: list[str]) -> tuple[list[bytes], float]:
    """The contents of all when fetched at once, and the seconds it took."""
    started = time.monotonic()
    with ThreadPoolExecutor(len(digests)) as pool:
        return list(pool.map(blobs.read, digests)), time.monotonic() - started


def test_no_blob_waits_for_another(blobs: BucketBlobs, asked: Counter[str]) -> None:
    """Eight different blobs take about as long as one, not eight times as long."""
    found, seconds = fetched(blobs, list(DATA))
    assert found == list(DATA.values())
    assert set(asked.values()) == {1}
    assert seconds < 6 * SECONDS


def test_a_blob_is_fetched_once_for_all_who_ask(blobs: BucketBlobs, asked: Counter[str]) -> None:
    """All of them get a failure, too, and the next caller tries again."""
    digest, missing = next(iter(DATA)), digest_of(b"nowhere")
    found, _ = fetched(blobs, [digest] * 8)
    assert found == [DATA[digest]] * 8
    assert asked[file_name(digest)] == 1
    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(blobs.path, missing) for _ in range(8)]:
            with pytest.raises(DamagedBlob, match="missing"):
                one.result()
    assert asked[file_name(missing)] < 8
    before = asked[file_name(missing)]
    with pytest.raises(DamagedBlob):
        blobs.path(missing)
    assert asked[file_name(missing)] == before + 1


def test_fetches_at_once_make_room_as_one_does(blobs: BucketBlobs, tmp_path: Path) -> None:
    """The least recently used blobs go, whatever else is fetched; those in use stay."""
    first, then = list(DATA)[:4], list(DATA)[4:]
    fetched(blobs, first)
    for path in (tmp_path / "cache").iterdir():
        os.utime(path, (0, path.stat().st_mtime - 300))
    assert fetched(blobs, then)[0] == [DATA[digest] for digest in then]
    assert {path.name for path in (tmp_path / "cache").iterdir()} == set(map(file_name, then))


def test_a_blob_that_makes_room_while_it_is_hashed_is_fetched_again(
    blobs: BucketBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the least recently used it is evicted first, and must not leave an empty file behind."""
    digest = min(DATA)
    path = blobs.path(digest)
    os.utime(path, (0, 0))

    def evicted_meanwhile(file: Path) -> str:
        found = digest_of_file(file)
        if file == path:
            path.unlink()
        return found

    monkeypatch.setattr(blob_store, "digest_of_file", evicted_meanwhile)
    assert blobs.read(digest) == DATA[digest]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "RequestTimeTooSkewed", "current time is too large"),
        (400, "AccessDenied", "server&#39;s time exceeds the maximum allowed."),
    ],
)
def test_a_bucket_that_refuses_our_clock_is_said_to(
    tmp_path: Path, status: int, code: str, words: str
) -> None:
    """Recognised from Amazon's and rclone's text, after the first line of obstore's error."""
    message = f"The difference between the request time and the {words}"
    body = f"<?xml?>\n<Error>\n<Code>{code}</Code>\n<Message>{message}</Message>\n</Error>".encode()

    class Refusing(SlowStore):
        def do_GET(self) -> None:
            """Refuse the request."""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Refusing) as url, closing(Spool(tmp_path / "incoming")) as incoming:
        store = S3Store(
            "bucket", endpoint=url, skip_signature=True, client_options={"allow_http": True}
        )
        with pytest.raises(Unavailable, match="clock and this machine's are too far apart"):
            BucketBlobs(store, tmp_path / "cache", 3000, incoming).check()


def test_a_copy_that_may_be_under_check_is_read_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have any size, and the checked copy is there already."""
    digest, data = next(iter(DATA.items()))
    store, fetched, download = MemoryStore(), [], s3._download
    for copy, stored in (("f", data), ("0", b"x" * 5000), ("a", b"y")):  # in order of time
        obstore.put(
            store, f"blobs/{folder_name(digest)}/{file_name(digest)}.parts/{copy}/0", stored
        )
        time.sleep(0.01)

    def noted(*arguments: Any) -> int:
        fetched.extend(key.split("/")[-2] for key in arguments[1] if ".parts/" in key)
        return download(*arguments)

    monkeypatch.setattr(s3, "_download", noted)
    with closing(Spool(tmp_path / "incoming")) as incoming:
        blobs = BucketBlobs(store, tmp_path / "cache", 10_000, incoming)
        assert blobs.read(digest) == data
    assert fetched == ["f"]
