"""What `pubswap serve` checks before it opens its port, and who may read its folder."""

import os
import signal
import stat
from pathlib import Path

import pytest

from pubswap_client.demo.processes import free_port
from pubswap_server.storage.local import LocalBlobs
from pubswap_server.storage.spool import Spool
from support.coordinator.s3 import ACCESS, BUCKET, SECRET, serving_s3
from support.coordinator.serving import serve
from support.forked import pubswap


def modes(folder: Path) -> dict[str, int]:
    """The modes of the folder and of everything in it."""
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in paths}


def begun_badly(*options: str, env: dict[str, str] | None = None) -> str:
    """The error of a `pubswap serve` that exits with status 1 before it serves."""
    done = pubswap("serve", "--port", "0", *options, env=os.environ | (env or {}))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


def test_nobody_else_reads_what_the_coordinator_keeps(tmp_path: Path) -> None:
    """Folders are 0700 and the database 0600 whatever the umask, even if older ones were not."""
    before = os.umask(0o022)
    try:
        with serve(tmp_path, f"sqlite:///{tmp_path}/data/pubswap.sqlite"):
            found = modes(tmp_path / "data")
    finally:
        os.umask(before)
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert found["."] == 0o700 and found["pubswap.sqlite"] == found["pubswap.sqlite-wal"] == 0o600
    data = tmp_path / "data"
    for path in (data, data / "blobs", data / "pubswap.sqlite"):
        path.chmod(0o755)
    with serve(tmp_path, f"sqlite:///{data}/pubswap.sqlite") as serving:
        assert {name for name, mode in modes(data).items() if mode & 0o077} == {"."}
        assert "chmod 700" in serving.log.read_text()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_coordinator_on_one_sqlite_folder_is_refused(tmp_path: Path, workers: str) -> None:
    """The message names the first one's process, until that has ended, however it ends."""
    url = f"sqlite:///{tmp_path}/data/pubswap.sqlite"
    with serve(tmp_path, url, ["--workers", workers]) as first:
        said = begun_badly("--data-dir", str(tmp_path / "data"))
        assert f"process {first.process.pid}" in said and "PostgreSQL" in said
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        with serve(tmp_path, url):
            pass


def test_a_new_database_beside_the_blobs_of_another_is_refused(tmp_path: Path) -> None:
    """Every time, because its rows reference none of them, so maintenance would delete them all."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    incoming = Spool(data / "incoming")
    blobs = LocalBlobs(data / "blobs", incoming)
    digest, _ = blobs.write([b"an adapter"])
    incoming.close()
    for _ in range(2):
        assert "--database-url" in begun_badly("--data-dir", str(data))
    assert blobs.read(digest) == b"an adapter"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "postgresql+psycopg://user:hidden@127.0.0.1:1/db",
            "user:***@127.0.0.1:1/db cannot be used",
        ),
        ("mysql://user:hidden@127.0.0.1/db", "postgresql+psycopg://"),
        ("nonsense", "postgresql+psycopg://"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_in_a_line(
    tmp_path: Path, url: str, said: str
) -> None:
    """At startup, and without the password."""
    told = begun_badly("--data-dir", str(tmp_path / "data"), "--database-url", url)
    assert said in told
    assert "hidden" not in told


def test_a_bucket_that_does_not_answer_is_said_in_a_line(tmp_path: Path) -> None:
    """A bucket that does not exist, and one without credentials."""
    data = ["--data-dir", str(tmp_path / "data"), "--blob-url", "s3://bucket/prefix"]
    dead = {"AWS_ENDPOINT": f"http://127.0.0.1:{free_port()}", "AWS_ALLOW_HTTP": "true"}
    region = {"AWS_REGION": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    assert "blob store does not answer" in begun_badly(*data, env=dead | region | keys)
    none = {"AWS_METADATA_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    assert "blob store does not answer" in begun_badly(*data, env=dead | region | none)
    members = {"PUBSWAP_BUCKET_ENDPOINT": "https://s3.example.org"}
    assert "blob store does not answer" in begun_badly(*data, env=dead | region | none | members)


def test_the_way_that_adapters_take_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the coordinator, or directly to the bucket at the address that members get."""
    with serve(tmp_path, f"sqlite:///{tmp_path / 'one.sqlite'}") as one:
        assert "adapters go through the coordinator\n" in one.log.read_text()
    with serving_s3(tmp_path / "s3") as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PUBSWAP_BUCKET_ENDPOINT", "https://s3.example.org/")
        options = ["--blob-url", f"s3://{BUCKET}/prefix"]
        with serve(tmp_path, f"sqlite:///{tmp_path / 'two.sqlite'}", options) as two:
            said = two.log.read_text()
    assert f"straight to the bucket, https://s3.example.org/{BUCKET}/prefix" in said
