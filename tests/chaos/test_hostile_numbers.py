"""A short run of the hostile numbers."""

from pathlib import Path

import pytest

from chaos.faults import hostile_numbers

pytestmark = pytest.mark.full


def test_a_member_with_extreme_numbers_ends_no_run(tmp_path: Path) -> None:
    """A rule, a precision and an optimizer on each database; `make chaos` tries them all."""
    result = hostile_numbers.run(2, 20261122, tmp_path)
    assert (result["tried"], result["lost"]) == (2, 0)
