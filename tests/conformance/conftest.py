"""One suite for every database and blob store, with one replica or several."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pubswap_server.clock import process_clock, wall
from support.coordinator.coordinator import Server, serving, settings_for
from support.coordinator.postgres import Postgres, postgres
from support.coordinator.s3 import BUCKET, serving_s3

PLACES = (
    "sqlite and folder",
    pytest.param("postgresql and bucket", marks=pytest.mark.full),
)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A real PostgreSQL for all tests; a test that kills it starts its own instead."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="session", params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """The database and the blob store of a coordinator."""
    return str(request.param)


@pytest.fixture(scope="session")
def blob_url(place: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | None]:
    """A bucket on a real S3 server, or None for a folder."""
    if place != "postgresql and bucket":
        yield None
        return
    with serving_s3(tmp_path_factory.mktemp("s3")) as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment().items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}/coordinator"


@pytest.fixture(scope="session")
def new_database(
    request: pytest.FixtureRequest, place: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], str]:
    """A function that makes an empty database."""
    if place == "sqlite and folder":
        return lambda: f"sqlite:///{tmp_path_factory.mktemp('database') / 'pubswap.sqlite'}"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.new_database


@pytest.fixture
def database_url(new_database: Callable[[], str]) -> str:
    """An empty database for a single test."""
    return new_database()


@pytest.fixture(scope="module")
def shared_server(
    new_database: Callable[[], str],
    blob_url: str | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """One coordinator per place, for all tests of a file that make their own runs."""
    data: Path = tmp_path_factory.mktemp("coordinator")
    there = {"database_url": new_database(), "blob_url": blob_url, "max_wait_seconds": 30}
    settings = settings_for(data).model_copy(update=there)
    with serving(settings) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The shared coordinator; a test's clients are closed when it ends."""
    with shared_server.closing:
        yield shared_server


@pytest.fixture
def hours() -> Iterator[Callable[[float], None]]:
    """A function that lets hours pass for the coordinator."""
    clock = process_clock()
    yield lambda count: clock.set(clock.now() + timedelta(hours=count))
    clock.set(wall())
