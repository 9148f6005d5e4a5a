"""A wall clock that jumps by a day in the middle of a round."""

from pathlib import Path

import pytest

from chaos.faults.clock import run


@pytest.mark.full
def test_a_jump_of_the_wall_clock_changes_nothing(tmp_path: Path) -> None:
    """Ahead and back, while it runs and over a restart: deadlines hold, and so does the outcome."""
    found = run(4, seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["broken"]
    assert found["tried"] == 4
