"""Blobs and uploads in an S3 bucket, which replicas on several machines share.

    <prefix>/blobs/ab/blake3-abcd…      a blob, named by its digest
    <prefix>/blobs/ab/blake3-abcd….parts/<random>/<n>
                                        or one copy's bytes from n (16 digits) on
    <prefix>/blobs/deployment           the id of the deployment to which the blobs belong
    <prefix>/damaged/ab/blake3-abcd…    a blob found damaged
    <prefix>/uploads/<id>/<n>           an upload's bytes from n on

A copy in parts may still be under check, or be left from an interrupted one. Therefore all copies
are tried until one has the digest.

Blobs are fetched into a local cache and checked and mapped there, because aggregation and downloads
read files. They never change, so the cache is never stale.
"""

import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore

from pubswap_protocol.digests import digest_of_file
from pubswap_protocol.errors import DamagedBlob, Unavailable, UnknownUpload
from pubswap_protocol.files import private_folder
from pubswap_server.storage.spool import Spool
from pubswap_server.storage.store import (
    OWNER,
    Assembled,
    BlobStore,
    Stored,
    UploadStore,
    check_offset,
    check_size,
    digest_of_name,
    file_name,
    folder_name,
)

# Larger pieces are slower: each needs new memory, and Linux takes long to find room for them in its
# page cache.
_PIECE = 256 << 10
_PARTS = ".parts"
_OWNER_KEY = f"blobs/{OWNER}"
_COPIES = 8
_IN_USE_SECONDS = 60


class BucketBlobs(BlobStore):
    """Blobs in a bucket, with a local cache of those used last."""

    def __init__(self, store: ObjectStore, cache: Path, cache_bytes: int, incoming: Spool) -> None:
        super().__init__(incoming)
        self._store = store
        self._cache = private_folder(cache)
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._fetches: dict[str, Future[None]] = {}  # under way, by digest
        self._until_eviction = 0  # bytes

    def path(self, digest: str) -> Path:
        path = self._cached(digest)
        try:
            self._verify(path, digest)
            os.utime(path)  # mark as used; `touch` would recreate a file that was evicted
            self._note_verified(path)
            return path
        except FileNotFoundError:
            pass
        except DamagedBlob:
            # Only the copy is known to be damaged; the bucket may have the right bytes.
            self._damaged.discard(digest)
            path.unlink(missing_ok=True)
        self._fetch_once(digest)
        return path

    def keep(self, file: Path, digest: str, *, in_place: bool = False) -> None:
        self._kept.add(digest)
        if not in_place:
            with reachable():
                obstore.put(self._store, blob_key(digest), file)
        self._into_cache(file, digest)

    def owner(self) -> str | None:
        with reachable(), suppress(FileNotFoundError):
            stored = bytes(obstore.get(self._store, _OWNER_KEY).bytes())
            return stored.decode(errors="replace").strip()
        return None

    def claim(self, owner: str) -> str | None:
        # A server that does not know conditional writes keeps the last one. Therefore a sweep looks
        # at the owner again before it removes anything.
        with reachable(), suppress(AlreadyExistsError):
            obstore.put(self._store, _OWNER_KEY, owner.encode() + b"\n", mode="create")
        return self.owner()

    def hand_over(self, owner: str) -> None:
        with reachable():
            obstore.put(self._store, _OWNER_KEY, owner.encode() + b"\n")

    def set_aside(self, digest: str) -> bool:
        with suppress(DamagedBlob):
            self.path(digest)
            return False
        self._damaged.discard(digest)
        for key in self._objects(digest):
            with reachable(), suppress(FileNotFoundError):
                obstore.rename(self._store, key, key.replace("blobs", "damaged", 1))
        self._cached(digest).unlink(missing_ok=True)
        return True

    def remove_older(self, digest: str, moment: float) -> None:
        for key in self._objects(digest):
            with reachable(), suppress(FileNotFoundError):
                # S3 has no conditional delete, so check the modification time just before.
                if obstore.head(self._store, key)["last_modified"].timestamp() >= moment:
                    return
                obstore.delete(self._store, key)
        self._cached(digest).unlink(missing_ok=True)

    def blobs(self) -> Iterator[Stored]:
        for blob in _grouped(_listed(self._store, "blobs/"), position=2):
            yield replace(blob, name=digest_of_name(blob.name.removesuffix(_PARTS)))

    def check(self) -> None:
        try:
            list(_listed(self._store, "none/"))  # fails only if there is no bucket
        except FileNotFoundError:
            raise Unavailable("The bucket does not exist.") from None

    def free_bytes(self) -> None:
        """A bucket reports no limit."""

    def _cached(self, digest: str) -> Path:
        return self._cache / file_name(digest)

    def _objects(self, digest: str) -> list[str]:
        # Include orphaned parts: a deletion may have been interrupted after the first.
        parts = _listed(self._store, _parts_of(digest))
        return [blob_key(digest), *(key for key, _, _ in parts)]

    def _fetch_once(self, digest: str) -> None:
        """Fetch a blob once for all concurrent callers, without waiting for other blobs."""
        with self._lock:
            fetch = self._fetches.get(digest)
            first = fetch is None
            if fetch is None:
                fetch = self._fetches[digest] = Future()
        if first:
            try:
                if not self._cached(digest).exists():
                    self._fetch(digest)
                fetch.set_result(None)
            except BaseException as error:
                fetch.set_exception(error)
            finally:
                with self._lock:
                    del self._fetches[digest]
        fetch.result()

    def _fetch(self, digest: str) -> None:
        temporary, actual = self._incoming.new(), None
        try:
            for keys in self._copies(digest):
                with suppress(FileNotFoundError):
                    _download(self._store, keys, temporary)
                    if (actual := digest_of_file(temporary)) == digest:
                        self._into_cache(temporary, digest)
                        return
        finally:
            temporary.unlink(missing_ok=True)
        if actual is None:
            raise self._missing(digest)
        self._damaged.add(digest)
        raise DamagedBlob(f"The stored blob {digest} has the digest {actual}; it is not served.")

    def _copies(self, digest: str) -> Iterator[list[str]]:
        """The keys of each copy of a blob; the latest, which may be under check, comes last."""
        yield [blob_key(digest)]
        parts = sorted(_listed(self._store, _parts_of(digest)))
        copies = [list(copy) for _, copy in groupby(parts, lambda part: part[0].rpartition("/")[0])]
        for copy in sorted(copies, key=lambda copy: copy[0][2]):
            yield [key for key, _, _ in copy]

    def _into_cache(self, file: Path, digest: str) -> None:
        path = self._cached(digest)
        file.touch()  # in use from now on, however long ago it was written
        self._until_eviction -= file.stat().st_size
        file.replace(path)
        self._note_verified(path)
        if self._until_eviction < 0:  # not at each blob, because it looks at all
            self._until_eviction = self._cache_bytes // 64
            self._evict()

    def _evict(self) -> None:
        """Make room in the cache, least recently used first; half of a small disk is left free.

        A file used a moment ago stays, because it may be about to be opened. An open file stays
        readable.
        """
        files = []
        for path in self._cache.iterdir():
            with suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        held, free = sum(size for _, size, _ in files), shutil.disk_usage(self._cache).free
        excess = held - min(self._cache_bytes, (held + free) // 2)
        for used, size, path in sorted(files):
            if excess <= 0 or used > time.time() - _IN_USE_SECONDS:
                return
            path.unlink(missing_ok=True)
            excess -= size


class BucketUploads(UploadStore):
    """Uploads in a bucket, with one object for each request's bytes."""

    def __init__(self, store: ObjectStore, incoming: Spool, members_write: bool = False) -> None:
        self._store = store
        self._incoming = incoming
        self._members_write = members_write

    def offset(self, upload: str) -> int:
        return sum(size for _, size in self._pieces(upload))

    @contextmanager
    def appending(self, upload: str, offset: int) -> Iterator[IO[bytes]]:
        """Gather the bytes in a local file, and put it into the bucket on any exit."""
        check_offset(self.offset(upload), offset)
        path = self._incoming.new()
        try:
            with path.open("wb", buffering=0) as file:
                try:
                    yield file
                finally:
                    if file.tell():
                        with reachable():
                            obstore.put(self._store, part_key(upload, offset), path)
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def assembled(self, upload: str, size: int, digest: str) -> Iterator[Assembled]:
        """A local copy, so that a late request cannot change it.

        If members write to the bucket, the bytes are first copied within it, to keys of the blob
        that members have no URL for. Then the checked bytes need not be sent to the bucket again.
        """
        pieces = self._pieces(upload)
        if not pieces:
            raise UnknownUpload("No bytes of this upload are stored; send it from the start.")
        check_size(sum(size for _, size in pieces), size)
        uploaded, path = [key for key, _ in pieces], self._incoming.new()
        copy = f"{_parts_of(digest)}{secrets.token_hex(8)}/"
        copied = [copy + key.rpartition("/")[2] for key in uploaded] if self._members_write else []
        try:
            with self._deleted_on_failure(copied):
                _copy(self._store, uploaded, copied)
                check_size(_download(self._store, copied or uploaded, path, size), size)
                yield Assembled(path, in_place=self._members_write)
        except FileNotFoundError:
            raise UnknownUpload("This upload has ended or was restarted; open it again.") from None
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _deleted_on_failure(self, keys: Sequence[str]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if keys:
                with suppress(Unavailable, FileNotFoundError), reachable():
                    obstore.delete(self._store, keys)
            raise

    def drop(self, upload: str) -> None:
        with reachable(), suppress(FileNotFoundError):
            keys = [key for key, _, _ in _listed(self._store, f"uploads/{upload}/")]
            if keys:
                obstore.delete(self._store, keys)

    def uploads(self) -> Iterator[Stored]:
        return _grouped(_listed(self._store, "uploads/"), position=1)

    def _pieces(self, upload: str) -> list[tuple[str, int]]:
        """Keys and sizes of the contiguous pieces from the first byte on.

        Two requests may have sent from the same offset. The later object then replaced the earlier
        one, and pieces that followed a longer, replaced one are not contiguous any more.
        """
        pieces, end = [], 0
        for key, size, _ in sorted(_listed(self._store, f"uploads/{upload}/")):
            if int(key.rsplit("/", 1)[-1]) == end:
                pieces.append((key, size))
                end += size
        return pieces


def blob_key(digest: str) -> str:
    """The key of a blob that is one object."""
    return f"blobs/{folder_name(digest)}/{file_name(digest)}"


def _parts_of(digest: str) -> str:
    """The folder of a blob's copies in parts."""
    return f"{blob_key(digest)}{_PARTS}/"


def part_key(upload: str, first: int) -> str:
    """The key of an upload's bytes from `first` on."""
    return f"uploads/{upload}/{first:016d}"


def _grouped(listed: Iterable[tuple[str, int, float]], position: int) -> Iterator[Stored]:
    """Merge the objects whose keys have the same name at `position`; shorter keys have none."""
    merged: dict[str, Stored] = {}
    for key, size, modified in listed:
        if key.count("/") < position:
            continue
        name = key.split("/")[position]
        group = merged.get(name, Stored(name, 0, 0.0))
        merged[name] = Stored(name, group.size + size, max(group.modified, modified))
    yield from merged.values()


def _copy(store: ObjectStore, keys: Sequence[str], to: Sequence[str]) -> None:
    """Copy objects within the bucket, several at a time, because each waits for the server."""
    with ThreadPoolExecutor(_COPIES) as pool, reachable():
        list(pool.map(partial(obstore.copy, store), keys, to))


def _listed(store: ObjectStore, prefix: str) -> Iterator[tuple[str, int, float]]:
    with reachable():
        for page in obstore.list(store, prefix=prefix):
            for entry in page:
                yield entry["path"], entry["size"], entry["last_modified"].timestamp()


def _download(store: ObjectStore, keys: Iterable[str], path: Path, limit: float = math.inf) -> int:
    """Concatenate objects into a local file; returns its size.

    Stops at the first piece beyond `limit` bytes, because an object may have changed since it was
    listed.
    """
    size = 0
    with path.open("wb") as file, reachable():
        for key in keys:
            for piece in obstore.get(store, key).stream(min_chunk_size=_PIECE):
                size += file.write(piece)
                if size > limit:
                    return size
    return size


@contextmanager
def reachable() -> Iterator[None]:
    """Turn the bucket's failures into Unavailable; FileNotFoundError is for the caller."""
    try:
        yield
    except (BaseError, PermissionError) as error:
        reason, _, answer = str(error).partition("\n")
        # Every S3 server uses these words for a request whose signing time is far from its own.
        if "request time" in answer:
            reason = "its clock and this machine's are too far apart; set the one that is wrong"
        raise Unavailable(f"The blob store does not answer: {reason}", retry_after=2) from None
