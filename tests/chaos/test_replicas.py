"""Short runs of the faults that a database, or one of several replicas, brings."""

from pathlib import Path

import pytest

from chaos.faults import postgres, replica

pytestmark = pytest.mark.full


def test_no_receipt_is_lost_when_postgresql_is_killed(tmp_path: Path) -> None:
    """Two kills at random moments: every receipt holds, every adapter is the exact mean."""
    found = postgres.run(2, 7, tmp_path)
    assert found["receipts"] > 0
    assert (found["tried"], found["lost"], found["faults"]) == (2, 0, 0)


def test_a_stopped_replica_that_goes_on_after_its_lease_writes_nothing_stale(
    tmp_path: Path,
) -> None:
    """Another one finishes the round; what the first one then tries is refused."""
    found = replica.run(1, 7, tmp_path)
    assert (found["tried"], found["lost"]) == (1, 0)
    assert found["fenced"] > 0
