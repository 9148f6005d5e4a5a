"""Stored blobs in which a bit has flipped."""

from pathlib import Path

import pytest

from chaos.corrupt import KINDS, run


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_found_and_made_good(tmp_path: Path, kind: str) -> None:
    """Under a running coordinator and while it is down: never served, and the run goes on."""
    found = run(2, seed=1, folder=tmp_path, only=kind)
    assert found["lost"] == 0, found["broken"]
