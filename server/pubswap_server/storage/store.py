"""What the coordinator asks of a place for blobs and of a place for uploads.

Both are used from worker threads. A blob is named by its digest and never changes; an upload is a
blob's first bytes, which may stay for a day.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol


@dataclass(frozen=True)
class Stored:
    """A blob or an upload as the store lists it; `modified` in seconds since 1970."""

    name: str
    size: int
    modified: float


class BlobStore(Protocol):
    """Blobs, each either whole and durable or not there."""

    def take_damaged(self) -> set[str]:
        """The digests whose bytes were found to be others since the last call."""

    def path(self, digest: str) -> Path:
        """A local file with the blob's bytes, to be read only.

        Raises DamagedBlob if it is missing, or its bytes are not the digest's.
        """

    def read(self, digest: str) -> bytes:
        """A blob's bytes; raises as `path` does."""

    def keep(self, file: Path, digest: str) -> None:
        """Make a local file, whose digest was computed, a blob: durable on return.

        The file is moved or copied. Raises NoSpace or another OSError; there is no blob then.
        """

    def write(self, parts: Iterable[bytes]) -> tuple[str, int]:
        """Store parts as one blob, durable on return; returns digest and size."""

    def set_aside(self, digest: str) -> None:
        """Take a damaged blob out of use, and off the list of `take_damaged`.

        It is kept under another name for the operator.
        """

    def remove_older(self, digest: str, moment: float) -> None:
        """Remove a blob that was stored before `moment` (seconds since 1970), if it is there."""

    def blobs(self) -> Iterator[Stored]:
        """All blobs, named by digest."""

    def check(self) -> None:
        """Raises Unavailable or OSError unless the store answers now."""

    def free_bytes(self) -> int | None:
        """Room left; None where the store has no limit of its own."""


class UploadStore(Protocol):
    """Uploads under way, shared by all replicas."""

    at_hand: bool
    """Whether `appending` takes no longer than a few calls of the system, as on a local disk."""

    def offset(self, upload: str) -> int:
        """How many of the first bytes are here; 0 for an upload that has none."""

    def appending(self, upload: str, offset: int) -> AbstractContextManager[IO[bytes]]:
        """A file to write the bytes from `offset` on to; what was written is kept on any exit.

        Raises WrongOffset unless `offset` is the upload's, Unavailable while another request
        writes to the upload.
        """

    def assembled(self, upload: str) -> AbstractContextManager[Path]:
        """A local file of all bytes, which nobody else changes meanwhile; it may be moved away.

        Raises UnknownUpload if there are none, Unavailable while another request writes.
        """

    def drop(self, upload: str) -> None:
        """Forget an upload's bytes."""

    def uploads(self) -> Iterator[Stored]:
        """All uploads that have bytes here."""
