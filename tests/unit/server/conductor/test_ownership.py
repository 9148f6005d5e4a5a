"""Which database and store belong together, and which blobs that no row names are removed."""

from datetime import UTC, datetime, timedelta

import pytest

from pubswap_server.conductor.leftovers import STRANGE_DAYS, removable, strange
from pubswap_server.conductor.ownership import discord
from pubswap_server.storage.store import Stored

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("database", "store", "named", "stored", "agree"),
    [
        ("x", "x", "ab", "", True),  # lost blobs are another matter
        ("x", "y", "ab", "ab", False),
        (None, "y", "ab", "ab", False),
        (None, "y", "", "", False),
        (None, None, "", "", True),  # a first start
        ("x", None, "", "", True),  # that was killed
        (None, None, "abc", "abz", True),  # an earlier version's
        ("x", None, "abc", "ab", True),
        ("x", None, "ab", "a", False),
        ("x", None, "ab", "", False),
        (None, None, "", "a", False),
    ],
)
def test_a_database_and_a_store_belong_together(
    database: str | None, store: str | None, named: str, stored: str, agree: bool
) -> None:
    """By their ids, or else by the blobs."""
    assert (discord(database, store, lambda: named, lambda: stored) is None) == agree


def test_freed_blobs_go_at_once_and_strange_ones_after_days() -> None:
    """A strange one also keeps what was stored before it was found."""
    hour, days = timedelta(hours=1), timedelta(days=STRANGE_DAYS)
    blobs = [Stored(name, 1, (NOW - 3 * hour).timestamp()) for name in ("freed", "expired")]
    blobs.append(Stored("later", 1, (NOW - hour).timestamp()))
    tombstones = {"freed": None, "expired": NOW - days, "later": None}
    assert removable(blobs, tombstones, NOW) == blobs
    blobs.append(Stored("strange", 1, 0.0))
    noted = {**tombstones, "strange": NOW - 2 * hour}
    assert strange(blobs, noted, NOW) == {"strange": NOW - 2 * hour}
    assert [blob.name for blob in removable(blobs, noted, NOW)] == ["expired", "later"]
    assert [blob.name for blob in removable(blobs, tombstones, NOW)] == ["expired"]
    assert removable(blobs, noted, NOW + days) == blobs
