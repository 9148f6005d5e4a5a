"""What is no invite is used for nothing."""

from pathlib import Path

import pytest

from pubswap_client.coordinator.tls import PUBLIC
from pubswap_client.organisation.enrolling import enroll
from pubswap_protocol.errors import InvalidSettings


def test_characters_that_no_invite_has_are_said(tmp_path: Path) -> None:
    """As a terminal of another encoding gives them, of which a command ended with a traceback."""
    with pytest.raises(InvalidSettings, match="characters that no invite has"):
        enroll("http://127.0.0.1:1", "code\udcff", tmp_path / "state", PUBLIC)
    assert not (tmp_path / "state").exists()
