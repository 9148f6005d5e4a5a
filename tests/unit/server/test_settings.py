"""The coordinator's settings that cannot go together."""

from pathlib import Path

import pytest

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.settings import load_settings, operator_token
from support.chaos.small_disk import missing, small_disk


def test_a_first_chunk_that_would_be_refused_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names both settings; raising both is fine."""
    monkeypatch.setenv("PUBSWAP_CHUNK_BYTES", str(32 << 20))
    with pytest.raises(InvalidSettings, match=r"chunk_bytes .* largest_chunk_bytes"):
        load_settings()
    monkeypatch.setenv("PUBSWAP_LARGEST_CHUNK_BYTES", str(32 << 20))
    assert load_settings().chunk_bytes == 32 << 20


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_full_disk_leaves_no_half_made_operator_token(tmp_path: Path) -> None:
    """Whatever was begun is gone again, and the next start has room to make one."""
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        settings = load_settings(data_dir=disk.folder)
        disk.fill()
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                operator_token(settings)
        assert not list(disk.folder.glob("operator-token*"))
        disk.make_room()
        token = operator_token(settings)
        assert token and operator_token(settings) == token
        assert [path.name for path in disk.folder.iterdir()] == ["operator-token"]
