"""The coordinator's settings that cannot go together."""

import pytest

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.settings import load_settings


def test_a_first_chunk_that_would_be_refused_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message names both settings; raising both is fine."""
    monkeypatch.setenv("PUBSWAP_CHUNK_BYTES", str(32 << 20))
    with pytest.raises(InvalidSettings, match=r"chunk_bytes .* largest_chunk_bytes"):
        load_settings()
    monkeypatch.setenv("PUBSWAP_LARGEST_CHUNK_BYTES", str(32 << 20))
    assert load_settings().chunk_bytes == 32 << 20
