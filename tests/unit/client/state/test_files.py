"""The state folder's files, written atomically, and its lock for one daemon at a time."""

import errno
import fcntl
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pubswap_client.state.lock import locked
from pubswap_client.state.sealed import BrokenSeal, seal, unseal
from pubswap_protocol import files
from pubswap_protocol.errors import NotSaved, StateInUse
from pubswap_protocol.files import (
    append_durably,
    create_durably,
    sweep,
    syncing,
    write_whole,
)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this code in a separate process."""
    command = [sys.executable, "-c", code, *arguments]
    # Without coverage, because a killed process may leave its data file broken.
    env = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)


def test_a_file_is_replaced_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    """It has the new content, nobody else may read it, and no other file is left."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("refused", [None, errno.ENOTSUP])
def test_on_a_mac_the_drive_s_cache_is_flushed_too(
    refused: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every durable write; on a file system without this, fsync has to do."""
    ways: list[str] = []

    def full(descriptor: int, command: int) -> None:
        assert command == 51
        ways.append("full")
        if refused:
            raise OSError(refused, os.strerror(refused))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda descriptor: ways.append("plain"))
    file = tmp_path / "file"
    with file.open("wb") as opened, syncing(opened.fileno()):
        pass
    assert ways == (["full", "plain"] if refused else ["full"])
    for write in (write_whole, create_durably, append_durably):
        ways.clear()
        write(tmp_path / write.__name__, b"bytes\n")
        assert ways == ["full", "plain"] * 2 if refused else ["full"] * 2  # the file, its folder


def test_a_disk_s_error_is_raised_on_a_mac_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second try, by fsync, would succeed: the kernel tells of an error once."""

    def failing(descriptor: int, command: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", failing)
    with pytest.raises(NotSaved):
        write_whole(tmp_path / "file", b"new")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system call that writes only a few bytes is repeated."""
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_whole(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EACCES, "let this user write there"),
        (errno.EROFS, "make that disk writable"),
        (errno.EIO, "correct that"),
    ],
)
def test_a_full_disk_is_named_and_the_old_file_stays(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message gives path, size, reason and advice; no part of the new file is left."""
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(NotSaved, match="file could not be saved, which takes 1000 bytes") as raised:
        write_whole(path, bytes(1000))
    assert os.strerror(number) in raised.value.detail
    assert advice in raised.value.detail
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("path", "advice"),
    [("taken/folder", "move the folder of that name away"), ("file/new", "is in its path")],
)
def test_a_folder_or_file_in_the_way_is_not_called_a_full_disk(
    path: str, advice: str, tmp_path: Path
) -> None:
    """The advice is to move it away, and it stays as it is."""
    (tmp_path / "taken/folder").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(NotSaved, match=advice):
        write_whole(tmp_path / path, b"new")
    assert len([*tmp_path.rglob("*")]) == 3


def test_a_file_system_that_takes_only_a_part_leaves_the_old_file(tmp_path: Path) -> None:
    """A real file-size limit, reached midway, gives the same message."""
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from pubswap_protocol.files import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "path = Path(sys.argv[1])\n"
        "write_whole(path, b'old')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write_whole(path, bytes(10_000))\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = python(code, str(tmp_path / "file"))
    assert "NotSaved" in done.stderr
    assert "file could not be saved, which takes 10000 bytes: File too large" in done.stderr
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_system_without_hard_links_or_synced_folders_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAT has no hard links, and a virtual machine's shared folder cannot be synced."""
    fsync = os.fsync

    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr("os.link", link)
    monkeypatch.setattr("os.fsync", only_files)
    path = tmp_path / "file"
    for data in (b"first", b"second"):
        create_durably(path, data)
        assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    write_whole(path, b"third")
    assert path.read_bytes() == b"third"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_interrupted_writes_are_deleted(tmp_path: Path) -> None:
    """Temporary files are deleted, and all others stay."""
    for name in ("file", "file.tmp", "other.safetensors.tmp"):
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_sealed_file_gives_back_facts_and_tensors() -> None:
    """Values, shapes and dtypes survive, even of a scalar and a transposed array."""
    tensors = {
        "scalar": np.array(3.0, dtype=np.float32),
        "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "bytes": np.frombuffer(b"body", np.uint8),
    }
    facts, found = unseal(b"".join(seal({"a": [0.1, '"']}, tensors)))
    assert facts == {"a": [0.1, '"']}
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)


def test_a_sealed_file_is_refused_after_any_change() -> None:
    """Any flipped bit, truncation or extra byte breaks the seal."""
    data = b"".join(seal({"a": 1}, {"x": np.arange(4, dtype=np.float32)}))
    unseal(data)
    changed = [
        data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(len(data))
    ]
    cut = [data[:length] for length in range(len(data))]
    for other in [*changed, *cut, data + b"\0"]:
        with pytest.raises(BrokenSeal):
            unseal(other)


def test_a_state_folder_takes_one_daemon_at_a_time(tmp_path: Path) -> None:
    """The second is told which process holds it; once that has ended, the next may start."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pubswap_client.state.lock import locked\n"
        "with locked(Path(sys.argv[1])): pass\n"
    )
    with locked(tmp_path):
        with (
            pytest.raises(StateInUse, match=rf"in use by another daemon \(process {os.getpid()}\)"),
            locked(tmp_path),
        ):
            pass
        assert "StateInUse" in python(code, str(tmp_path)).stderr
    assert python(code, str(tmp_path)).returncode == 0


def test_a_killed_daemon_s_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The kernel releases it although the child lives on."""
    code = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from pubswap_client.state.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os.close(1); os.close(2); time.sleep(60)\n"
        "    print(child, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = int(python(code, str(tmp_path)).stdout)
    try:
        with locked(tmp_path):
            os.kill(child, 0)  # the child is still alive
    finally:
        os.kill(child, 9)
