"""Content-addressed files: written to a temporary name, hashed, fsynced, renamed, fsynced."""

import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from pubswap_protocol.errors import DigestMismatch, LengthMismatch, TooLarge, UnknownBlob


@dataclass(frozen=True)
class Received:
    """A body on disk under a temporary name, not yet a blob."""

    path: Path
    digest: str
    size: int

    def discard(self) -> None:
        """Remove it, unless it has become a blob."""
        self.path.unlink(missing_ok=True)


class BlobStore:
    """A folder of blobs, each named by its digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._incoming = folder / "incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)
        for leftover in self._incoming.iterdir():
            leftover.unlink()

    def path(self, digest: str) -> Path:
        """Where a blob is; raises UnknownBlob if it is not there."""
        path = self._place(digest)
        if not path.exists():
            raise UnknownBlob(f"The blob {digest} is not stored here.")
        return path

    def read(self, digest: str) -> bytes:
        """A blob's bytes; raises UnknownBlob if it is missing, DigestMismatch if it is damaged."""
        data = self.path(digest).read_bytes()
        if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
            raise DigestMismatch(f"The stored blob {digest} is damaged.")
        return data

    async def receive(
        self, body: AsyncIterator[bytes], limit: int, declared: int | None
    ) -> Received:
        """Stream a body to disk.

        Raises TooLarge over `limit` bytes, and LengthMismatch unless there are as many bytes as
        declared. Nothing is left behind then.
        """
        if declared is not None and declared > limit:
            raise TooLarge(f"The body has {declared} bytes; at most {limit} are taken here.")
        digest, size = hashlib.sha256(), 0
        descriptor, name = tempfile.mkstemp(dir=self._incoming)
        received = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                async for chunk in body:
                    size += len(chunk)
                    if size > limit:
                        raise TooLarge(f"The body is larger than {limit} bytes.")
                    if declared is not None and size > declared:
                        raise LengthMismatch(f"The body is longer than the {declared} declared.")
                    digest.update(chunk)
                    file.write(chunk)
            if declared is not None and size != declared:
                raise LengthMismatch(f"The body has {size} bytes where {declared} were declared.")
        except BaseException:
            received.unlink(missing_ok=True)
            raise
        return Received(received, "sha256:" + digest.hexdigest(), size)

    async def keep(self, received: Received) -> str:
        """Make a received body a blob, durably; returns its digest."""
        await to_thread.run_sync(self._commit, received.path, received.digest)
        return received.digest

    def write(self, parts: Iterable[bytes]) -> tuple[str, int]:
        """Store parts as one blob, durably; returns digest and size."""
        digest, size = hashlib.sha256(), 0
        descriptor, name = tempfile.mkstemp(dir=self._incoming)
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                digest.update(part)
                size += len(part)
                file.write(part)
        named = "sha256:" + digest.hexdigest()
        self._commit(Path(name), named)
        return named, size

    def _place(self, digest: str) -> Path:
        hexadecimal = digest.removeprefix("sha256:")
        return self.folder / hexadecimal[:2] / hexadecimal

    def _commit(self, temporary: Path, digest: str) -> None:
        place = self._place(digest)
        place.parent.mkdir(exist_ok=True)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(place)
        for folder in (place.parent, self.folder):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
