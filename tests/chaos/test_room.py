"""A member that fills the disk with adapters it does not use."""

from pathlib import Path

import pytest

from chaos.faults.room import missing, run

pytestmark = [pytest.mark.full, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


def test_honest_rounds_go_on_beside_a_member_that_hoards(tmp_path: Path) -> None:
    """Without a limit a round, its adapters would fill the disk in the first rounds."""
    found = run(4, seed=2, folder=tmp_path)
    assert found["lost"] == 0, found["broken"]
    assert found["refused"] > 0
    assert found["rounds_freed"] == 4 - 2
