"""One coordinator for all tests of a file; each test makes its own runs.

Not one for all files: a test that moves the clock moves it for every run, and with a few hundred
of them all deadlines would pass at once.
"""

from collections.abc import Iterator

import pytest

from support.coordinator.coordinator import Server, serving, settings_for


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real uvicorn in a thread, on its own socket."""
    settings = settings_for(tmp_path_factory.mktemp("coordinator"))
    with serving(settings.model_copy(update={"max_wait_seconds": 30})) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared coordinator; a test's clients are closed when it ends."""
    with shared_server.closing:
        yield shared_server
