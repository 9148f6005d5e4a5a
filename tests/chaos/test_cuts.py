"""Connections that are cut while adapters travel, between real processes."""

from pathlib import Path

import pytest

from chaos.faults import bucket
from chaos.faults.cuts import cutting, run
from support.chaos.proxy import seeded


@pytest.mark.full
def test_adapters_travel_whole_through_cut_connections(tmp_path: Path) -> None:
    """Of 16 cuts at random bytes none loses or changes an adapter, and little is sent again."""
    found = run(16, seed=4, folder=tmp_path)
    assert found["tried"] >= 16
    assert (found["lost"], found["corrupt"]) == (0, 0)
    assert 0 < found["resent_share"] <= 0.05


@pytest.mark.full
def test_adapters_travel_whole_to_and_from_a_bucket_through_cut_connections(
    tmp_path: Path,
) -> None:
    """None is lost or changed, and most of the bytes go there all the same."""
    found = bucket.run(8, seed=4, folder=tmp_path)
    assert found["tried"] >= 8
    assert (found["lost"], found["corrupt"]) == (0, 0)
    assert found["direct_share"] > 0.5


def test_a_seed_cuts_at_the_same_bytes_again() -> None:
    """A connection's fault follows from the seed and its number alone, and differs by both."""
    first, again, other = (seeded(seed, cutting("up")) for seed in (1, 1, 2))
    numbers = range(20)
    assert [first(n) for n in numbers] == [again(n) for n in reversed(numbers)][::-1]
    assert [first(n) for n in numbers] != [other(n) for n in numbers]
