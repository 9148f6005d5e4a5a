"""Invalid invites are refused."""

from pathlib import Path

import pytest

from pubswap_client.coordinator.tls import PUBLIC
from pubswap_client.organisation.enrolling import enroll
from pubswap_protocol.errors import InvalidSettings


def test_characters_that_no_invite_has_are_refused(tmp_path: Path) -> None:
    """A terminal with another encoding may produce them, and they must not end in a traceback."""
    with pytest.raises(InvalidSettings, match="characters that no invite has"):
        enroll("http://127.0.0.1:1", "code\udcff", tmp_path / "state", PUBLIC)
    assert not (tmp_path / "state").exists()
