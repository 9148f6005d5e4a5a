"""What the tests of real processes share."""

import pytest


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts are not measured.

    Coverage makes a daemon half as slow again, and what daemons run is measured elsewhere.
    """
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
