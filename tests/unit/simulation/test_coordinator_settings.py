"""The settings of a simulation's coordinator."""

from pathlib import Path

import pytest

from pubswap_simulation.coordinator import coordinator_settings


def test_nothing_outside_the_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket and a notification address in the environment of a coordinator are ignored."""
    monkeypatch.setenv("PUBSWAP_BUCKET_ENDPOINT", "https://bucket.example")
    monkeypatch.setenv("PUBSWAP_NOTIFY_URL", "https://notify.example")

    settings = coordinator_settings(tmp_path)

    assert settings.bucket_endpoint is None
    assert settings.notify_url is None
