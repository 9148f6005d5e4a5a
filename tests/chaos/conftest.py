"""What all faults share."""

import pytest


@pytest.fixture(autouse=True)
def _none_measured(unmeasured: None) -> None:
    """Processes that are killed leave nothing of their coverage, or a broken file."""
