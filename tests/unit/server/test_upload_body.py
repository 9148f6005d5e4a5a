"""Buffered writing of an upload's chunks, and the errors that it must not hide."""

import asyncio
import errno
import fcntl
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from pubswap_protocol.errors import Invalid, TooLarge
from pubswap_protocol.files import syncing, write_pieces
from pubswap_server.http.upload_body import chunk_range
from pubswap_server.storage.spool import ROOM as PIECE
from pubswap_server.storage.spool import BodyBudget, Spool, Writer


@pytest.mark.parametrize("size", [1, 1000, PIECE - 1, 3 * PIECE + 7])
def test_bytes_are_written_in_order_whatever_their_pieces(tmp_path: Path, size: int) -> None:
    """Many small pieces and few large ones give the same file."""
    data = os.urandom(size)

    async def write(step: int) -> None:
        with (tmp_path / "file").open("wb", buffering=0) as file:
            writer = Writer(file.fileno(), BodyBudget())
            for begin in range(0, size, step):
                await writer.write(data[begin : begin + step])
            await writer.flush()
            assert writer.size == size

    for step in (max(1, size // 1500), 65_536, size):
        asyncio.run(write(step))
        assert (tmp_path / "file").read_bytes() == data


def test_a_full_disk_is_told_to_the_writer_at_the_flush_at_the_latest() -> None:
    """/dev/full refuses all writes."""

    async def write() -> None:
        with Path("/dev/full").open("wb", buffering=0) as file:
            writer = Writer(file.fileno(), BodyBudget())
            await writer.write(bytes(10))
            await writer.flush()

    with pytest.raises(OSError, match="No space"):
        asyncio.run(write())


def test_a_chunk_says_which_bytes_it_is() -> None:
    """First and last, inclusive, within the upload, and not too many."""
    assert chunk_range("0-9", 10, 10) == (0, 10)
    assert chunk_range("5-5", 10, 10) == (5, 1)
    for wrong in ("", "0", "5-4", "bytes 0-9/10", "-1-3", "0-9999999999999999999"):
        with pytest.raises(Invalid):
            chunk_range(wrong, 10, 10)
    for large in ("0-10", "10-10"):
        with pytest.raises(TooLarge):
            chunk_range(large, 100, 10)
    with pytest.raises(TooLarge, match="at most 10"):
        chunk_range("0-10", 10, 100)


def test_nothing_is_written_after_bytes_that_were_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full for a moment leaves the file's beginning, never a file with a gap."""
    real, calls = os.writev, list[int]()

    def full_once(descriptor: int, pieces: list[bytes]) -> int:
        calls.append(len(pieces))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, pieces)

    monkeypatch.setattr(os, "writev", full_once)
    data = os.urandom(4 * PIECE)

    async def write() -> None:
        with (tmp_path / "file").open("wb", buffering=0) as file:
            writer = Writer(file.fileno(), BodyBudget())
            try:
                for begin in range(0, len(data), PIECE):
                    await writer.write(data[begin : begin + PIECE])
            finally:
                await writer.flush()

    with pytest.raises(OSError, match="No space"):
        asyncio.run(write())
    assert (tmp_path / "file").read_bytes() == data[:PIECE]


def test_what_the_system_did_not_take_at_once_is_written_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call may write only part of several pieces, for example if a signal interrupts it."""
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda file, pieces: real(file, [pieces[0], pieces[1][:3]]))
    pieces = [b"first", b"second", b"third"]
    with (tmp_path / "file").open("wb", buffering=0) as file:
        write_pieces(file.fileno(), pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_bodies_under_way_share_their_memory() -> None:
    """One has pieces of 4 MiB, 16 have 256 KiB each, and a thousand still have 64 KiB."""
    budget = BodyBudget()
    for bodies, expected in ((1, 4 << 20), (4, 1 << 20), (16, 256 << 10), (1000, 64 << 10)):
        with ExitStack() as stack:
            for _ in range(bodies):
                stack.enter_context(budget.under_way())
            assert budget.piece_bytes == expected
    assert budget.piece_bytes == 4 << 20


def test_what_did_not_reach_the_disk_meanwhile_is_an_error(tmp_path: Path) -> None:
    """The system reports it only once, to the sync that runs beside the block, which raises it."""
    reader, writer = os.pipe()  # cannot be synced
    with pytest.raises(OSError, match="Invalid argument"), syncing(writer):
        (tmp_path / "read meanwhile").touch()
    assert (tmp_path / "read meanwhile").exists()
    os.close(reader)
    os.close(writer)


def test_a_folder_that_another_process_removed_at_its_start_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that start together may take a folder for a leftover until its lock is held."""
    lock, removed = fcntl.flock, list[Path]()

    def flock(descriptor: int, how: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            shutil.rmtree(removed[0])
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    mine = Spool(tmp_path)
    assert removed != [mine.folder]
    assert mine.new().exists()
    mine.close()
