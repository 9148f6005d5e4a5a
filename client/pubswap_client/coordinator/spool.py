"""Requests and answers as files in a folder shared by two machines, each complete or absent.

    FOLDER/NAME.request     a daemon's request, with its token
    FOLDER/NAME.answer      the coordinator's answer, or the relay's if it cannot reach it
    FOLDER/NAME.….tmp       a file that is being written
    FOLDER/done             the names of answered requests, one a line
    FOLDER/lock             held by the relay

A file is a body, a line of JSON that describes it, and that line's length. The body comes first, so
that one of any size can be written as it arrives; the length comes last, so that a truncated file
is recognised. Files get their names by rename, which is atomic even on NFS. Only the owner has
access to the folder and its files.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from pubswap_protocol import files
from pubswap_protocol.errors import InvalidSettings

REQUEST, ANSWER, TEMPORARY = ".request", ".answer", ".tmp"
NAME = re.compile(r"[0-9a-f]{32}")
BLOCK_BYTES = 1 << 20
LARGEST_BYTES = 1 << 36  # of a body
_LARGEST_LINE = 1 << 16
_END = 16  # bytes after the line: its length in 8 digits, and _MARK
_MARK = b" pubswap"

Header = tuple[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")],
    Annotated[str, Field(pattern=r"^[\t -~]{0,16384}$")],
]
Headers = Annotated[list[Header], Field(max_length=64)]


class Envelope(BaseModel, extra="forbid", frozen=True):
    """A file's description of its body."""

    name: str = Field(pattern=rf"^{NAME.pattern}$")
    headers: Headers


class Asked(Envelope):
    """A request, without its host, because the relay decides where it goes."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    target: str = Field(pattern=r"^/[!-~]{1,4095}$")


class Answered(Envelope):
    """An answer; `cut` if the rest of its body never arrived."""

    status: int = Field(ge=200, le=599)
    cut: bool = False


M = TypeVar("M", bound=Envelope)


class Refused(Exception):
    """A file is incomplete, or not from the other side; the message says why."""


def private_folder(folder: Path) -> Path:
    """The folder, created if missing; raises InvalidSettings if others can access it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077 or not stat.S_ISDIR(status.st_mode):
        raise InvalidSettings(
            f"{folder} holds tokens, so it must be a folder of yours that is closed to others: "
            f"chmod 700 {folder}"
        )
    return folder


def look_again(folder: Path) -> None:
    """Make a network file system refresh its listing, by changing the folder."""
    os.utime(folder)


def write(path: Path, pieces: Iterable[bytes | memoryview], message: Envelope) -> None:
    """Write a file atomically under its name; raises OSError."""
    with Draft(path) as draft:
        for piece in pieces:
            draft.add(piece)
        draft.finish(message)


class Draft:
    """A file that is being written; it is deleted unless it is finished."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(path.name + TEMPORARY)

    def __enter__(self) -> "Draft":
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        self._descriptor = os.open(self._temporary, flags, 0o600)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        self._temporary.unlink(missing_ok=True)

    def add(self, piece: bytes | memoryview) -> None:
        files.write_all(self._descriptor, piece)

    def finish(self, message: Envelope) -> None:
        line = message.model_dump_json().encode()
        self.add(line + b"%08d" % len(line) + _MARK)
        files.publish(self._temporary, self._path)


def read(path: Path, kind: type[M]) -> tuple[M, BinaryIO, int]:
    """A file's message, the file at the start of its body, and the body's size.

    Raises Refused, and FileNotFoundError.
    """
    _require_owned_file(path.lstat())  # opening a link or somebody else's file may fail
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    try:
        status = os.fstat(file.fileno())
        _require_owned_file(status)  # it may have been replaced since
        if status.st_mode & 0o022:
            raise Refused("others can write to it")
        message, size = _described(file, status.st_size, kind)
        if message.name != path.name.removesuffix(path.suffix):
            raise Refused(f"it belongs to {message.name}")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return message, file, size


def _require_owned_file(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise Refused("it is not a regular file of ours")


def _described(file: BinaryIO, size: int, kind: type[M]) -> tuple[M, int]:
    if not _END < size <= LARGEST_BYTES + _LARGEST_LINE + _END:
        raise Refused(f"it has {size} bytes")
    file.seek(size - _END)
    end = file.read(_END)
    if not re.fullmatch(rb"[0-9]{8}" + _MARK, end):
        raise Refused("its end is missing")
    length = int(end[:8])
    if not 0 < length <= min(_LARGEST_LINE, size - _END):
        raise Refused("its end is damaged")
    file.seek(size - _END - length)
    try:
        return kind.model_validate_json(file.read(length)), size - _END - length
    except ValidationError as error:
        raise Refused(f"it does not describe its body: {error.errors()[0]['msg']}") from None


def body(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The next `size` bytes of a file, in blocks."""
    while size and (block := file.read(min(BLOCK_BYTES, size))):
        size -= len(block)
        yield block
