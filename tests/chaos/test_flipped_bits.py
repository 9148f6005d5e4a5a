"""Stored blobs in which a bit has flipped."""

from pathlib import Path

import pytest

from chaos.faults.corrupt import KINDS, run

pytestmark = pytest.mark.full


def test_a_flipped_bit_is_found_and_made_good(tmp_path: Path) -> None:
    """In each kind of blob, under a running coordinator and while it is down: never served."""
    found = run(2 * len(KINDS), seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["broken"]
    assert found["kinds"] == len(KINDS)
