"""Requests that two parsers might cut differently."""

from pathlib import Path

import pytest

from chaos.faults.framing import CASES, run

pytestmark = pytest.mark.full


def test_no_byte_of_a_body_is_answered_as_a_request(tmp_path: Path) -> None:
    """Some cases and pipelines, as a reference framer cuts them, direct and through nginx."""
    found = run(30, seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["broken"]
    assert found["answered"] > 30
    assert len(CASES) >= 60
