"""/readyz of a real server that loses its database or storage; /healthz stays 200."""

import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support.coordinator.coordinator import serving, settings_for
from support.coordinator.postgres import postgres
from support.coordinator.s3 import BUCKET, serving_s3

SECRET = "a-password-nobody-may-read"


def eventually(client: httpx.Client, status: int) -> httpx.Response:
    """Wait until /readyz has this status, because its answer is cached for a second."""
    deadline = time.monotonic() + 120
    while (answer := client.get("/readyz")).status_code != status:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)
    assert client.get("/healthz").status_code == 200
    return answer


def test_a_folder_that_is_away_or_a_full_disk_is_told(tmp_path: Path) -> None:
    """503 with the reason while it lasts, then 200 again without a restart."""
    with serving(settings_for(tmp_path)) as server, server.http(None) as client:
        assert eventually(client, 200).json() == {"status": "ready"}
        (tmp_path / "blobs").rename(tmp_path / "away")
        refused = eventually(client, 503).json()
        assert refused["code"] == "unavailable"
        assert refused["detail"] == "Not ready: the blob store does not answer."
        (tmp_path / "away").rename(tmp_path / "blobs")
        eventually(client, 200)
    full = settings_for(tmp_path).model_copy(update={"spare_bytes": 1 << 62})
    with serving(full) as server, server.http(None) as client:
        assert "the disk has less than" in eventually(client, 503).json()["detail"]


def test_an_absent_database_and_bucket_are_told_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both reasons are reported quickly, without addresses or passwords."""
    with postgres() as database, ExitStack() as bucket:
        s3 = bucket.enter_context(serving_s3(tmp_path / "s3"))
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        url = database.new_database().replace("postgres@", f"postgres:{SECRET}@")
        settings = settings_for(tmp_path / "c").model_copy(
            update={"database_url": url, "blob_url": f"s3://{BUCKET}/some"}
        )
        with serving(settings) as server, server.http(None) as client:
            eventually(client, 200)
            bucket.close()
            assert "blob store" in eventually(client, 503).json()["detail"]
            database.kill()
            deadline = time.monotonic() + 120
            while "database" not in (answer := client.get("/readyz")).text:
                assert time.monotonic() < deadline, answer.text
                time.sleep(0.1)
            assert answer.status_code == 503
            # Far less than the store's own retries, which take three minutes.
            assert answer.elapsed.total_seconds() < 60
            for secret in (SECRET, s3.url, "127.0.0.1", BUCKET, "SECRET"):
                assert secret not in answer.text
            database.start()
            deadline = time.monotonic() + 120
            while "database" in (answer := client.get("/readyz")).text:
                assert time.monotonic() < deadline, answer.text
                time.sleep(0.1)
            assert "blob store" in answer.text
