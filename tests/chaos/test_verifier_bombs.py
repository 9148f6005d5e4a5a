"""Answers that no verifier gets through."""

from pathlib import Path

import pytest

from chaos.faults.bombs import run

pytestmark = pytest.mark.full


def test_bombs_cost_honest_members_next_to_nothing(tmp_path: Path) -> None:
    """Verdicts are right, also after a kill, nobody waits for the bombs, and memory stays flat."""
    found = run(1, seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["broken"]
    assert found["tried"] == 1
