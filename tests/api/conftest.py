"""One coordinator for all tests of a file; each test makes its own runs.

What one test's clock does to its run is done to all: a few hundred runs would all be late at once.
"""

from collections.abc import Iterator

import pytest

from support.coordinator.coordinator import Server, serving, settings_for


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real uvicorn in a thread, on a socket of its own."""
    settings = settings_for(tmp_path_factory.mktemp("coordinator"))
    with serving(settings.model_copy(update={"max_wait_seconds": 30})) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared coordinator; the clients that a test makes are closed after it."""
    with shared_server.closing:
        yield shared_server
