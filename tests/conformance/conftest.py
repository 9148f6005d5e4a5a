"""One suite for every database, and every number of replicas that share it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.coordinator import Server, serving, settings_for
from support.postgres import Postgres, postgres

DATABASES = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A real PostgreSQL for all tests; who kills it takes one of its own."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="session", params=DATABASES)
def new_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], str]:
    """Makes empty databases; called for each kind."""
    if request.param == "sqlite":
        return lambda: f"sqlite:///{tmp_path_factory.mktemp('database') / 'pubswap.sqlite'}"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database


@pytest.fixture
def database_url(new_database: Callable[[], str]) -> str:
    """An empty database of a test's own."""
    return new_database()


@pytest.fixture(scope="session")
def shared_server(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One coordinator on each database for all tests that make runs of their own."""
    data: Path = tmp_path_factory.mktemp("coordinator")
    there = {"database_url": new_database(), "max_wait_seconds": 30}
    settings = settings_for(data).model_copy(update=there)
    with serving(settings) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared coordinator; the clients that a test makes are closed after it."""
    with shared_server.closing:
        yield shared_server
