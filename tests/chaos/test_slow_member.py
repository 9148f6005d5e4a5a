"""A member that is ten times slower than the others."""

from pathlib import Path

import pytest

from chaos.faults.slow import run

pytestmark = pytest.mark.full


def test_rounds_close_on_time_without_a_slow_member(tmp_path: Path) -> None:
    """At the look after the deadline, with the others' mean; it hears `late, unused`."""
    found = run(3, seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["broken"]
    assert found["tried"] == 3
    assert found["late_updates"] >= 1
