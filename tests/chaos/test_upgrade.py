"""Connections that ask for another protocol."""

from pathlib import Path

import pytest

from chaos.faults.upgrade import run

pytestmark = pytest.mark.full


def test_an_upgrade_is_no_way_past_the_deadlines(tmp_path: Path) -> None:
    """Plain and over TLS, whole and cut: all are closed in time."""
    found = run(90, seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["broken"]
    assert found["tried"] == 135
