"""A store's blobs belong to one deployment, and no other or older database takes them away."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, select, text, update
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings, RoundClosed, Unavailable
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_server.admin.backup import backup
from pubswap_server.admin.restore import restore
from pubswap_server.admin.verify import verify
from pubswap_server.clock import now
from pubswap_server.conductor import maintenance
from pubswap_server.conductor.leftovers import STRANGE_DAYS
from pubswap_server.conductor.maintenance import sweep
from pubswap_server.conductor.ownership import deployment_of, join, named_by, stored_in
from pubswap_server.database.engine import Database
from pubswap_server.database.tables import UnnamedRow, UploadRow
from pubswap_server.exchange import exchanges
from pubswap_server.server import prepared
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.local import LocalBlobs
from pubswap_server.storage.opening import make_storage
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.coordinator.older import go_back
from support.coordinator.places import admin, on_sqlite

REFUSED = "are of different deployments: .*pubswap admin adopt"


@pytest.fixture
def settings(database_url: str, blob_url: str | None, tmp_path: Path) -> ServerSettings:
    """The settings of a coordinator for a single test."""
    there = {"database_url": database_url, "blob_url": blob_url and f"{blob_url}/{tmp_path.name}"}
    return settings_for(tmp_path / "place").model_copy(update=there)


@contextmanager
def living(settings: ServerSettings) -> Iterator[Server]:
    """A coordinator that was started like `pubswap serve`."""
    with prepared(settings), serving(settings) as server, server.closing:
        yield server


def refused(settings: ServerSettings) -> str:
    """Why a coordinator with these settings does not start."""
    with pytest.raises(InvalidSettings, match=REFUSED) as caught, prepared(settings):
        pass
    return caught.value.detail


def starts(settings: ServerSettings) -> str:
    """The id with which a coordinator starts."""
    with prepared(settings), closing(Database(settings.sqlalchemy_url)) as database:
        own = deployment_of(database.engine)
    assert own
    assert make_storage(settings).blobs.owner() == own
    return own


def on(settings: ServerSettings, url: str) -> ServerSettings:
    """The same store with another database."""
    return settings.model_copy(update={"database_url": url})


def sweep_all(server: Server) -> None:
    """Sweep as if the grace period of young blobs were over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "ORPHAN_SECONDS", -2.0)
        server.do(sweep(server.app.state.services))


def blobs_of(settings: ServerSettings) -> tuple[set[str], set[str]]:
    """The blobs that the database names, and those in the store."""
    with closing(Database(settings.sqlalchemy_url)) as database:
        return named_by(database), stored_in(make_storage(settings).blobs)


def copied(request: pytest.FixtureRequest, url: str) -> str:
    """A copy of a database that nobody uses, as a restore to a point in time gives."""
    if make_url(url).get_backend_name() == "postgresql":
        name = make_url(url).database
        copy: str = request.getfixturevalue("postgres_server").new_database(f'TEMPLATE "{name}"')
        return copy
    file = Path(make_url(url).database or "")
    shutil.copyfile(file, file.with_name("older.sqlite"))
    return f"sqlite:///{file.with_name('older.sqlite')}"


def the_same_members(fed: Federation, server: Server) -> Federation:
    """The run at another coordinator, with its members' tokens."""
    members = {name: server.client(token) for name, token in fed.tokens.items()}
    return Federation(server, fed.run, server.client(), members, fed.tokens)


def play(fed: Federation, round_: int, seed: int) -> None:
    """A round with two updates."""
    for number, name in enumerate(("a", "b")):
        fed.submit(name, round_, fed.adapter(seed + number))
    fed.wait_for(round_)


def test_an_older_copy_of_the_database_loses_nothing_of_the_newer(
    settings: ServerSettings, request: pytest.FixtureRequest
) -> None:
    """Not even what it frees itself: a kept round's updates, and an upload handed in since."""
    with living(settings) as server:
        fed = begun(server, rounds=5, method="fedavg")
        play(fed, 1, 10)
        fed.members["a"].put_blob(fed.run.id, encode_adapter(fed.run.model.layout, fed.adapter(20)))
    older = on(settings, copied(request, settings.sqlalchemy_url))
    with living(settings) as server:
        play(the_same_members(fed, server), 2, 20)
    named, _ = blobs_of(settings)
    with living(older) as server:
        sweep_all(server)
        again = the_same_members(fed, server)
        for round_ in (2, 3, 4):
            play(again, round_, 100 * round_)
            sweep_all(server)
    assert blobs_of(settings)[1] >= named
    with living(settings) as server:
        sweep_all(server)
        play(the_same_members(fed, server), 3, 30)
    assert verify(settings, progress_bar()).healthy


def test_another_database_is_refused_until_it_adopts_the_store(
    settings: ServerSettings, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """A new one and one with runs of its own; the blobs stay, and each message names both."""
    with living(settings) as server:
        fed = begun(server)
    own, (named, stored) = starts(settings), blobs_of(settings)
    strange = on(settings, new_database())
    assert f"the deployment {own}, and the database to none yet" in refused(strange)
    elsewhere = settings_for(tmp_path / "elsewhere").model_copy(
        update={"database_url": new_database()}
    )
    with living(elsewhere) as server:
        begun(server, seed=5)
    strange = on(settings, elsewhere.sqlalchemy_url)
    assert starts(elsewhere) in refused(strange)

    asked = admin(strange, "adopt")
    assert (asked.returncode, "add --yes" in asked.stderr) == (1, True)
    assert f"the store is of the deployment {own}" in asked.stdout
    assert "names 4 blobs: 3 are in the store, 1 are missing" in asked.stdout
    assert "has 1 blobs" in asked.stdout
    assert "removes them 7 days after" in asked.stdout
    assert starts(settings) == own
    adopted = admin(strange, "adopt", "--yes")
    assert adopted.returncode == 0, adopted.stderr
    assert starts(strange) == starts(elsewhere)
    with living(strange) as server, capture_logs() as lines:
        sweep_all(server)
        assert "that this database never named" in str(lines)
    assert refused(settings)
    assert admin(settings, "adopt", "--yes").returncode == 0
    with living(settings) as server:
        play(the_same_members(fed, server), 1, 10)
    assert blobs_of(settings)[1] >= stored >= named


def test_blobs_that_were_adopted_and_discarded_go_at_once(
    settings: ServerSettings, new_database: Callable[[], str]
) -> None:
    """So an operator who does not want another database's blobs gets their space."""
    with living(settings) as server:
        begun(server)
    new = on(settings, new_database())
    assert admin(new, "adopt", "--yes", "--discard").returncode == 0
    with living(new) as server:
        sweep_all(server)
    assert blobs_of(new) == (set(), set())


def test_a_running_coordinator_removes_nothing_from_a_store_that_was_adopted(
    settings: ServerSettings,
) -> None:
    """It says so in its log."""
    starts(settings)
    make_storage(settings).blobs.hand_over("another")
    with serving(settings) as server, capture_logs() as lines:
        blobs = server.app.state.services.blobs
        orphan, _ = blobs.write([b"nobody names me"])
        sweep_all(server)
        assert blobs.read(orphan) == b"nobody names me"
        assert "belongs to another deployment" in str(lines)


def test_processes_that_start_together_agree(settings: ServerSettings) -> None:
    """On a new database and an empty store."""

    def start(number: int) -> None:
        place = settings
        if settings.blob_url is not None:  # each on a machine of its own
            place = settings.model_copy(update={"data_dir": settings.data_dir / str(number)})
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        join(place, make_storage(place).blobs)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    assert starts(settings)


@on_sqlite
@pytest.mark.parametrize("earlier", [False, True])
def test_a_start_that_was_killed_between_both_writes_is_repeated(
    settings: ServerSettings, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    """A first start, and the first one on an earlier version's data."""
    if earlier:
        make_earlier(settings)
    with monkeypatch.context() as patch:
        patch.setattr(LocalBlobs, "claim", unavailable)
        with pytest.raises(Unavailable), prepared(settings):
            pass
    with closing(Database(settings.sqlalchemy_url)) as database:
        own = deployment_of(database.engine)
    assert own == starts(settings)


def unavailable(blobs: LocalBlobs, owner: str) -> str | None:
    """In place of writing the id."""
    raise Unavailable("gone")


def make_earlier(settings: ServerSettings) -> None:
    """A run in the database and folder of the version before there were ids."""
    with living(settings) as server:
        begun(server)
    (settings.data_dir / "blobs" / "deployment").unlink()
    with closing(sqlite3.connect(make_url(settings.sqlalchemy_url).database or "")) as rows:
        for (name,) in rows.execute(
            "SELECT name FROM sqlite_master WHERE name LIKE '%_freed_by_%'"
        ):
            rows.execute(f"DROP TRIGGER {name}")
        go_back(rows.execute, "0010")
        rows.commit()


@on_sqlite
def test_an_earlier_version_s_database_and_folder_are_joined_unasked(
    settings: ServerSettings, request: pytest.FixtureRequest
) -> None:
    """From then on a copy of that database is another one, and stays as it was."""
    make_earlier(settings)
    before = blobs_of(settings)
    copy = on(settings, copied(request, settings.sqlalchemy_url))
    with living(settings) as server:
        sweep_all(server)
    assert blobs_of(settings) == before
    assert "the database to none yet" in refused(copy)
    with closing(sqlite3.connect(make_url(copy.sqlalchemy_url).database or "")) as rows:
        assert rows.execute("SELECT version_num FROM alembic_version").fetchall() == [("0010",)]
    assert admin(copy, "adopt", "--yes").returncode == 0
    assert starts(copy)


@on_sqlite
def test_a_database_whose_blobs_are_somewhere_else_is_refused(
    settings: ServerSettings, tmp_path: Path
) -> None:
    """For example while the disk that has them is not mounted; nothing is written there."""
    with living(settings) as server:
        begun(server)
    blobs = settings.data_dir / "blobs"
    blobs.rename(tmp_path / "unmounted")
    assert "names 4 blobs, and of those 0 are among the 0 in the store" in refused(settings)
    assert not (blobs / "deployment").exists()
    shutil.rmtree(blobs)
    (tmp_path / "unmounted").rename(blobs)
    assert starts(settings)


def test_a_restored_backup_is_the_same_deployment(
    settings: ServerSettings, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """In an empty place, and in one whose coordinator has been started and has done nothing."""
    with living(settings) as server:
        begun(server)
    backup(settings, tmp_path / "backup", progress_bar())
    for name in ("new", "started"):
        update = {"data_dir": tmp_path / name, "database_url": new_database()}
        if settings.blob_url is not None:
            update["blob_url"] = f"{settings.blob_url}-{name}"
        place = settings.model_copy(update=update)
        if name == "started":
            starts(place)
        restore(place, tmp_path / "backup", progress_bar())
        assert starts(place) == starts(settings)


def notes(server: Server) -> dict[str, Any]:
    """The rows of unnamed blobs: each one's digest, and when it was noted."""
    with Session(server.app.state.services.database.engine) as session:
        return dict(session.execute(select(UnnamedRow.digest, UnnamedRow.noted_at)).all())


def test_what_members_store_and_do_not_use_goes_at_once(
    settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way it was freed, after a restart, too; and no row of it is left."""

    def closed(*arguments: Any, **options: Any) -> None:
        raise RoundClosed("too late")

    with living(settings) as server:
        fed = begun(server)
        before = stored_in(server.app.state.services.blobs)
        encoded = [encode_adapter(fed.run.model.layout, fed.adapter(n)) for n in range(3)]
        with monkeypatch.context() as patch:  # responses that are stored, and refused then
            patch.setattr(exchanges, "submit", closed)
            with pytest.raises(RoundClosed):
                fed.members["a"].submit_responses(
                    fed.run.id, 1, 1, fed.responses("a", 1, 1, [1, 1])
                )
        fed.members["a"].put_blob(fed.run.id, encoded[0])  # freed with the round
        with monkeypatch.context() as patch:  # stored, but its session has ended meanwhile
            patch.setattr("pubswap_server.http.routes.uploads.uploads.finish", closed)
            with pytest.raises(RoundClosed):
                fed.members["b"].put_blob(fed.run.id, encoded[1])
        services = server.app.state.services
        with Session(services.database.engine) as session, session.begin():
            session.execute(update(UploadRow).values(expires_at=now()))
    with living(settings) as server:
        again = the_same_members(fed, server)
        assert len(stored_in(server.app.state.services.blobs) - before) == 3
        play(again, 1, 10)
        sweep_all(server)
        named, stored = blobs_of(settings)
        assert stored == named
        sweep_all(server)
        assert notes(server).keys() <= stored
        assert not any(notes(server).values())


def test_a_blob_that_was_never_named_stays_for_days_from_its_note(
    settings: ServerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile what was stored before it was found stays, too, and what comes later goes."""
    starts(settings)
    strange, _ = make_storage(settings).blobs.write([b"from a newer database"])
    with living(settings) as server:
        fed = begun(server, method="fedavg")
        adapter = encode_adapter(fed.run.model.layout, fed.adapter(1))
        fed.members["a"].put_blob(fed.run.id, adapter)
        sweep_all(server)
        assert [digest for digest, at in notes(server).items() if at] == [strange]
        play(fed, 1, 10)
        sweep_all(server)
        assert {strange, digest_of(adapter)} <= stored_in(server.app.state.services.blobs)
        late = timedelta(days=STRANGE_DAYS, minutes=1)
        monkeypatch.setattr(maintenance, "now", lambda: now() + late)
        sweep_all(server)
        named, stored = blobs_of(settings)
        assert stored == named


@pytest.mark.parametrize("how", ["UPDATE updates SET stored = NULL", "DELETE FROM updates"])
def test_any_statement_that_frees_a_blob_leaves_a_tombstone(
    settings: ServerSettings, how: str
) -> None:
    """By a trigger, in the same transaction."""
    with living(settings) as server:
        fed = begun(server, method="fedavg")
        adapter = digest_of(encode_adapter(fed.run.model.layout, fed.adapter(1)))
        fed.submit("a", 1, fed.adapter(1))
        with server.app.state.services.database.engine.begin() as connection:
            connection.execute(text("DELETE FROM unnamed_blobs"))
            connection.execute(text(how))
        assert notes(server) == {adapter: None}
