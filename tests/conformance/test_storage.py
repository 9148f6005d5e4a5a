"""The contract of every store of blobs and uploads: a local folder, and a bucket on real S3."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    DamagedBlob,
    InvalidSettings,
    Unavailable,
    UnknownUpload,
    WrongOffset,
)
from pubswap_server.settings import ServerSettings
from pubswap_server.storage import opening
from pubswap_server.storage.opening import Storage, make_storage
from pubswap_server.storage.store import digest_of_name, file_name
from support.coordinator.s3 import BUCKET, serving_s3

DATA = bytes(range(256)) * 5000


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.full)])
def places(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ServerSettings, Path]]:
    """A store's settings, and the folder with its actual files."""
    if request.param == "folder":
        yield ServerSettings(data_dir=tmp_path / "data"), tmp_path / "data"
        return
    with serving_s3(tmp_path / "s3") as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        settings = ServerSettings(data_dir=tmp_path / "data", blob_url=f"s3://{BUCKET}/some/prefix")
        yield settings, s3.folder / BUCKET / "some" / "prefix"


@pytest.fixture
def storage(places: tuple[ServerSettings, Path]) -> Iterator[Storage]:
    """One replica's view of the store."""
    made = make_storage(places[0])
    yield made
    made.incoming.close()


def elsewhere(places: tuple[ServerSettings, Path], tmp_path: Path) -> Storage:
    """Another replica: on another machine for a bucket, in another process for a folder."""
    settings = places[0]
    if settings.blob_url is not None:
        settings = settings.model_copy(update={"data_dir": tmp_path / "another"})
    return make_storage(settings)


def test_a_store_keeps_its_first_owner_until_it_is_handed_over(
    storage: Storage, places: tuple[ServerSettings, Path], tmp_path: Path
) -> None:
    """The id is beside the blobs, and neither it nor another file there is a blob."""
    other = elsewhere(places, tmp_path)
    assert storage.blobs.owner() is None
    assert storage.blobs.claim("first") == other.blobs.owner() == "first"
    storage.blobs.hand_over("second")
    assert other.blobs.owner() == "second"
    if places[0].blob_url is None:  # the bucket's server of the tests has no conditional writes
        assert other.blobs.claim("third") == "second"
    (places[1] / "blobs" / "another").write_bytes(b"somebody's")
    assert list(storage.blobs.blobs()) == []


def test_a_blob_is_read_as_it_was_written_by_every_replica(
    storage: Storage, places: tuple[ServerSettings, Path], tmp_path: Path
) -> None:
    """With its bytes, digest and size, also by a replica that did not write it."""
    digest, size = storage.blobs.write([DATA[:1000], DATA[1000:]])
    assert (digest, size) == (digest_of(DATA), len(DATA))
    other = elsewhere(places, tmp_path)
    for replica in (storage, other):
        assert replica.blobs.read(digest) == DATA
        assert replica.blobs.path(digest).read_bytes() == DATA
        assert [(blob.name, blob.size) for blob in replica.blobs.blobs()] == [(digest, len(DATA))]
    other.incoming.close()


def test_a_file_that_was_received_becomes_a_blob(storage: Storage) -> None:
    """Keeping it twice is harmless, and its temporary file is gone."""
    for _ in range(2):
        path = storage.incoming.new()
        path.write_bytes(DATA)
        storage.blobs.keep(path, digest_of(DATA))
        assert not path.exists()
    assert storage.blobs.read(digest_of(DATA)) == DATA


def test_a_blob_that_is_missing_is_reported_like_a_damaged_one(storage: Storage) -> None:
    """Only blobs that a row names are requested, so a missing one has been lost."""
    with pytest.raises(DamagedBlob, match="missing"):
        storage.blobs.path(digest_of(b"never stored"))
    assert storage.blobs.take_damaged() == {digest_of(b"never stored")}


def test_every_flipped_bit_is_noticed_and_never_served(
    storage: Storage, places: tuple[ServerSettings, Path], tmp_path: Path
) -> None:
    """The blob is reported, set aside, and can be stored again."""
    digest, _ = storage.blobs.write([DATA])
    (file,) = (path for path in places[1].rglob("*") if path.name == file_name(digest))
    for place in (0, len(DATA) // 2, len(DATA) - 1):
        spoiled = bytearray(DATA)
        spoiled[place] ^= 1
        file.write_bytes(spoiled)
        replica = elsewhere(places, tmp_path / str(place))
        for read in (replica.blobs.path, replica.blobs.read):
            with pytest.raises(DamagedBlob):
                read(digest)
        assert replica.blobs.take_damaged() == {digest}
        assert replica.blobs.take_damaged() == set()
        replica.incoming.close()
    replica = elsewhere(places, tmp_path / "last")
    assert replica.blobs.set_aside(digest)
    assert replica.blobs.set_aside(digest)
    with pytest.raises(DamagedBlob):
        replica.blobs.read(digest)
    assert list(storage.blobs.blobs()) == []
    storage.blobs.write([DATA])
    assert replica.blobs.read(digest) == DATA
    replica.incoming.close()


def test_a_damaged_blob_that_was_put_back_is_not_set_aside(
    storage: Storage, places: tuple[ServerSettings, Path], tmp_path: Path
) -> None:
    """It may have been repaired since the report, and setting it aside would lose it."""
    digest, _ = storage.blobs.write([DATA])
    (file,) = (path for path in places[1].rglob("*") if path.name == file_name(digest))
    file.write_bytes(bytes(len(DATA)))
    replica = elsewhere(places, tmp_path / "replica")
    with pytest.raises(DamagedBlob):
        replica.blobs.read(digest)
    file.write_bytes(DATA)
    assert not replica.blobs.set_aside(digest)
    assert replica.blobs.read(digest) == DATA
    assert [blob.name for blob in storage.blobs.blobs()] == [digest]
    replica.incoming.close()


def test_only_what_is_old_is_removed(storage: Storage) -> None:
    """A blob stored at the given time stays, an older one goes; repeating it is harmless."""
    digest, _ = storage.blobs.write([DATA])
    (blob,) = storage.blobs.blobs()
    storage.blobs.remove_older(digest, blob.modified // 1)  # a bucket tells whole seconds
    assert storage.blobs.read(digest) == DATA
    storage.blobs.remove_older(digest, blob.modified + 10)
    storage.blobs.remove_older(digest, blob.modified + 10)
    assert list(storage.blobs.blobs()) == []


def test_a_blob_is_as_young_as_its_storing(storage: Storage) -> None:
    """An upload's bytes may have waited for hours; a sweep spares what was stored just now."""
    path, moment = storage.incoming.new(), time.time() - 60
    path.write_bytes(DATA)
    os.utime(path, (moment - 7200, moment - 7200))
    storage.blobs.keep(path, digest_of(DATA))
    storage.blobs.remove_older(digest_of(DATA), moment)
    assert storage.blobs.read(digest_of(DATA)) == DATA


def test_an_upload_grows_from_its_offset_on_any_replica(
    storage: Storage, places: tuple[ServerSettings, Path], tmp_path: Path
) -> None:
    """Bytes written before a failure count; a wrong offset is refused and changes nothing."""
    other = elsewhere(places, tmp_path)
    assert storage.uploads.offset("u") == 0
    with storage.uploads.appending("u", 0) as file:
        file.write(DATA[:500])
    with pytest.raises(OSError, match="cut"), other.uploads.appending("u", 500) as file:
        file.write(DATA[500:700])
        raise OSError("cut")
    for wrong in (0, 500, 701):
        with pytest.raises(WrongOffset, match="700"), storage.uploads.appending("u", wrong):
            pass
    assert storage.uploads.offset("u") == other.uploads.offset("u") == 700
    with storage.uploads.appending("u", 700) as file:
        file.write(DATA[700:])
    assert [(u.name, u.size) for u in other.uploads.uploads()] == [("u", len(DATA))]
    with other.uploads.assembled("u", len(DATA), digest_of(DATA)) as here:
        assert here.path.read_bytes() == DATA
        other.blobs.keep(here.path, digest_of(DATA), in_place=here.in_place)
    other.uploads.drop("u")
    other.uploads.drop("u")
    assert storage.uploads.offset("u") == 0
    assert storage.blobs.read(digest_of(DATA)) == DATA
    with pytest.raises(UnknownUpload), storage.uploads.assembled("u", len(DATA), digest_of(DATA)):
        pass
    other.incoming.close()


def test_one_request_at_a_time_writes_to_a_local_upload(tmp_path: Path) -> None:
    """Another request is told to retry, also one that finishes the upload."""
    storage = make_storage(ServerSettings(data_dir=tmp_path))
    with storage.uploads.appending("u", 0) as file:
        file.write(DATA)
        with pytest.raises(Unavailable), storage.uploads.appending("u", len(DATA)):
            pass
        with pytest.raises(Unavailable), storage.uploads.assembled("u", len(DATA), digest_of(DATA)):
            pass
    storage.incoming.close()


DYING = """
import os, sys
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.opening import make_storage
make_storage(ServerSettings(data_dir=sys.argv[1])).incoming.new().write_bytes(b"under way")
os._exit(0)
"""


def test_leftovers_of_a_killed_process_go_and_a_living_one_s_stay(tmp_path: Path) -> None:
    """The next process to start removes the unfinished bodies of one that died."""
    living = make_storage(ServerSettings(data_dir=tmp_path))
    kept = living.incoming.new()
    subprocess.run([sys.executable, "-c", DYING, str(tmp_path)], check=True, timeout=120)
    folders = set((tmp_path / "incoming").iterdir())
    assert len(folders) == 2
    third = make_storage(ServerSettings(data_dir=tmp_path))
    assert set((tmp_path / "incoming").iterdir()) == {living.incoming.folder, third.incoming.folder}
    assert kept.exists()
    living.incoming.close()
    third.incoming.close()
    assert list((tmp_path / "incoming").iterdir()) == []


def test_a_cache_forgets_what_was_used_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To stay within its size, except for files used in the last minute."""
    with serving_s3(tmp_path / "s3") as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(opening, "CACHE_BYTES", 2 * len(DATA))
        storage = make_storage(
            ServerSettings(data_dir=tmp_path / "data", blob_url=f"s3://{BUCKET}")
        )
        digests = [storage.blobs.write([bytes([n]), DATA[1:]])[0] for n in range(3)]
        cached = tmp_path / "data" / "cache"
        assert len(list(cached.iterdir())) == 3
        for age, digest in zip((300, 200, 100), digests, strict=True):
            file = cached / file_name(digest)
            os.utime(file, (0, file.stat().st_mtime - age))
        storage.blobs.write([b"another", DATA[7:]])
        assert {digest_of_name(path.name) for path in cached.iterdir()} & set(digests) == {
            digests[2]
        }
        assert storage.blobs.read(digests[0])[1:] == DATA[1:]
        storage.incoming.close()


def test_a_blob_url_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    """The error quotes the setting."""
    with pytest.raises(InvalidSettings, match="blob_url 'nonsense"):
        make_storage(ServerSettings(data_dir=tmp_path, blob_url="nonsense://x"))
