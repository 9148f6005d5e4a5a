"""A coordinator that is killed by SIGKILL again and again, while members work."""

import sqlite3
from pathlib import Path

import pytest

from chaos.faults.coordinator import SETTINGS, run
from pubswap_client.coordinator.retry import ONCE
from pubswap_server.storage.store import file_name, folder_name
from support.client.lives import Lives
from support.coordinator.coordinator import begun
from support.coordinator.fleet import Fleet, counted_wrong

pytestmark = pytest.mark.full


def test_a_coordinator_killed_at_any_point_keeps_every_receipt(tmp_path: Path) -> None:
    """Eight deaths later, every receipt holds and every adapter is the undisturbed run's."""
    found = run(8, seed=3, folder=tmp_path)
    assert found["tried"] >= 8
    assert found["lost"] == 0, found["broken"]
    assert found["receipts"] > 8
    assert found["adapters"] >= 4


def test_a_receipt_that_no_longer_holds_is_found(tmp_path: Path) -> None:
    """An update that vanishes from the database, and a blob from the folder, are both noticed."""
    with Lives(tmp_path) as lives, lives.server() as server:
        lives.begin()
        lives.wait_ready()
        fleet = Fleet(begun(server, **SETTINGS | {"rounds": 1}))
        fleet.start()
        fleet.wait(60)
        assert not fleet.ledger.broken(fleet.federation)
        lives.kill()
        with sqlite3.connect(lives.data_dir / "pubswap.sqlite") as database:
            database.execute("DELETE FROM updates WHERE member = 'a'")
            digest = database.execute("SELECT stored FROM updates WHERE member = 'b'").fetchone()
        database.close()
        (lives.data_dir / "blobs" / folder_name(digest[0]) / file_name(digest[0])).unlink()
        lives.begin()
        lives.wait_ready()
        broken = fleet.ledger.broken(fleet.federation, ONCE)
        assert {"a: update of round 1", "b: blob of round 1"} <= set(broken)
        assert counted_wrong(fleet.federation)
