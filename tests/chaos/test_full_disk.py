"""A disk that is full: the coordinator says so, keeps nothing half-done, and goes on later."""

from pathlib import Path

import pytest

from chaos.faults.disk import PLACES, missing, run

pytestmark = [pytest.mark.full, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


def test_a_full_disk_costs_nothing_but_time(tmp_path: Path) -> None:
    """At each place where room is needed: refused in words, and the run ends once there is room."""
    found = run(len(PLACES), seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["broken"]
    assert found["places"] == len(PLACES)
