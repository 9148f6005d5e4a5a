"""Backups of coordinators that are serving, restored elsewhere."""

import random
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.errors import BackupFault, InvalidSettings
from pubswap_protocol.messages import OpenUpload, RunState
from pubswap_server.admin.backup import backup
from pubswap_server.admin.manifest import read_manifest
from pubswap_server.admin.restore import restore
from pubswap_server.admin.verify import verify
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.store import digest_of_name
from support.coordinator.coordinator import Federation, Server, begun, serving
from support.coordinator.next_release import upgrade_to_next_release
from support.coordinator.places import StorageFactory, admin, environment_of, storage_factory
from support.forked import Forked

RIGHT = {"a": [0, 3], "b": [4, 2]}
# All that changes from moment to moment.
CLOCK = {"left_seconds": True, "members": {"__all__": {"unseen_seconds"}}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageFactory]:
    """One PostgreSQL and one S3 server for all tests."""
    with (
        storage_factory(tmp_path_factory.mktemp("places")) as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in made.s3.environment().items():
            patch.setenv(name, value)
        yield made


@dataclass
class Kept:
    """Backups of a run after its first and after its last round, and the backed-up coordinator."""

    settings: ServerSettings
    folder: Path
    early: Path


@pytest.fixture(scope="module")
def kept(made: StorageFactory) -> Kept:
    """A finished run and its backups."""
    settings = made.new("folder")
    with serving(settings) as server, server.closing:
        fed = begun(server, method="fedavg")
        kept = Kept(settings, made.folder / "kept", made.folder / "early")
        for name in ("a", "b"):
            fed.submit(name, 1, fed.adapter(len(name)))
        fed.wait_for(1)
        backup(settings, kept.early, progress_bar())
        finish(fed, 2)
        backup(settings, kept.folder, progress_bar())
        return kept


def finish(fed: Federation, begin: int) -> bytes:
    """Hand in missing updates until the run ends; returns the final adapter."""
    rounds = fed.run.settings.rounds
    for round_ in range(begin, rounds + 1):
        for number, name in enumerate(("a", "b")):
            fed.submit(name, round_, fed.adapter(10 * round_ + number))
        fed.wait_for(round_)
    return fed.operator.global_adapter(fed.run.id, "final")


def exchange(fed: Federation, bodies: dict[str, bytes]) -> dict[str, bytes]:
    """Hand in the responses of round 2's public step; returns each member's exchanged groups."""
    for name, body in bodies.items():
        status = fed.members[name].submit_responses(fed.run.id, 2, 1, body).status
        assert status == "accepted"
    return {name: fed.members[name].exchanged(fed.run.id, 2, 1) for name in bodies}


def the_same_members(fed: Federation, server: Server) -> Federation:
    """The run at another coordinator, with its members' tokens."""
    members = {name: server.client(token) for name, token in fed.tokens.items()}
    return Federation(server, fed.run, server.client(), members, fed.tokens)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("folder", "services"),
        pytest.param("services", "folder", marks=pytest.mark.full),
    ],
)
def test_a_run_goes_on_from_a_backup_with_the_same_bits(
    made: StorageFactory, tmp_path: Path, source: str, target: str
) -> None:
    """Backed up in the middle of round 2's exchange, and restored to another kind of storage."""
    here, there = made.new(source), made.new(target)
    with serving(here) as server, server.closing:
        fed = begun(server, rounds=3)
        for number, name in enumerate(("a", "b")):
            fed.submit(name, 1, fed.adapter(10 + number))
        fed.wait_for(1)
        bodies = {name: fed.responses(name, 2, 1, RIGHT[name]) for name in ("a", "b")}
        fed.members["a"].submit_responses(fed.run.id, 2, 1, bodies["a"])
        fed.submit("a", 2, fed.adapter(20))
        opened = server.http(fed.tokens["b"])
        announced = OpenUpload(digest="blake3:" + 64 * "0", size=100).model_dump(mode="json")
        path = f"/v1/runs/{fed.run.id}/blobs/uploads"
        assert opened.post(path, json=announced).status_code == 201
        opened.close()
        before, log = fed.view(), fed.operator.events(fed.run.id).events
        done = admin(here, "backup", str(tmp_path / "backup"))
        assert done.returncode == 0, done.stderr
        assert "1 runs with 3 members, 3 updates" in done.stdout
        groups = exchange(fed, bodies)
        expected = finish(fed, 2)

    done = admin(there, "restore", str(tmp_path / "backup"))
    assert done.returncode == 0, done.stderr
    checked = admin(there, "verify", "--json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with serving(there) as server, server.closing:
        again = the_same_members(fed, server)
        assert again.view().model_dump(exclude=CLOCK) == before.model_dump(exclude=CLOCK)
        assert again.view().state is RunState.EXCHANGING
        assert again.operator.events(fed.run.id).events == log
        assert exchange(again, bodies) == groups
        assert finish(again, 2) == expected
        # The database's numbering continues after the restored rows.
        again.enroll("late")
    assert admin(there, "verify").returncode == 0


@pytest.mark.full
def test_every_backup_made_while_rounds_go_on_is_one_moment(
    made: StorageFactory, tmp_path: Path
) -> None:
    """Each restores completely, and reuses unchanged files of the one before."""
    settings, folder = made.new("folder"), tmp_path / "backup"
    with serving(settings) as server, server.closing:
        fed = begun(server, method="fedavg", rounds=12)
        training = threading.Thread(target=finish, args=(fed, 1))
        training.start()
        seen, files = [], dict[Path, int]()
        while training.is_alive():
            manifest = backup(settings, folder, progress_bar())
            seen.append(manifest.rows["updates"])
            place = made.new("folder")
            restore(place, folder, progress_bar())
            report = verify(place, progress_bar())
            assert report.healthy, report.text()
            assert report.orphans == []
            now = {path: path.stat().st_ino for path in (folder / "blobs").rglob("*/*")}
            # Permanent blobs are linked; updates are deleted as rounds go on.
            assert {path: now[path] for path in files.keys() & now} == {
                path: files[path] for path in files.keys() & now
            }
            assert not files or len(files.keys() & now) > 3
            assert {digest_of_name(path.name) for path in now} == set(manifest.blobs)
            files = now
        training.join()
    assert len(seen) >= 3
    assert seen == sorted(seen)
    assert len(list(folder.glob("database-*"))) == 1
    assert list((folder / "incoming").iterdir()) == []


def dies_at(point: str, settings: ServerSettings, folder: Path) -> bool:
    """Back up in a process that is killed when it calls a function; returns whether it was."""
    command, log = ["admin", "backup", str(folder)], folder.with_suffix(".log")
    install = ("support.chaos.killed_at", "pubswap_server.admin.backup", point)
    status = Forked(command, log, env=environment_of(settings), install=install).wait()
    assert status in (0, -signal.SIGKILL), log.read_text()
    return status != 0


@pytest.mark.parametrize(
    "point", ["copy_rows", "keep_blob", "finish", "write_manifest", "prune", "nowhere"]
)
def test_a_backup_that_is_killed_leaves_a_whole_one(kept: Kept, tmp_path: Path, point: str) -> None:
    """The old one until the manifest is written, then the new one; the next backup finishes."""
    folder = tmp_path / "backup"
    shutil.copytree(kept.early, folder)
    assert dies_at(point, kept.settings, folder) == (point != "nowhere")
    expected = kept.folder if point in ("prune", "nowhere") else kept.early
    place = kept.settings.model_copy(update={"data_dir": tmp_path / "place"})
    assert restore(place, folder, progress_bar()).rows == read_manifest(expected).rows
    assert verify(place, progress_bar()).healthy
    backup(kept.settings, folder, progress_bar())
    assert {p.name for p in files_of(folder / "blobs")} == {
        p.name for p in files_of(kept.folder / "blobs")
    }
    assert [p.name for p in folder.glob("database-*")] == [read_manifest(folder).database.file]
    assert list((folder / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    "spoiled", ["manifest", "no text", "database", "blob", "no blob", "schema", "nothing"]
)
def test_a_backup_that_is_not_whole_is_refused_before_anything_is_written(
    kept: Kept, tmp_path: Path, spoiled: str
) -> None:
    """The message names what is wrong; the storage stays empty."""
    folder, place = tmp_path / "backup", tmp_path / "place"
    shutil.copytree(kept.folder, folder)
    blob = random.Random(1).choice(sorted((folder / "blobs").rglob("*/*")))
    manifest, (database,) = folder / "manifest.json", folder.glob("database-*")
    if spoiled == "manifest":
        manifest.write_text(manifest.read_text()[:-100])
    elif spoiled == "no text":
        manifest.write_bytes(manifest.read_bytes().replace(b"software", b"s\xefftware"))
    elif spoiled == "schema":
        manifest.write_text(
            manifest.read_text().replace('"schema_revision": "', '"schema_revision": "9')
        )
    elif spoiled == "nothing":
        manifest.unlink()
    elif spoiled == "no blob":
        blob.unlink()
    else:
        file = database if spoiled == "database" else blob
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    done = admin(kept.settings.model_copy(update={"data_dir": place}), "restore", str(folder))
    assert done.returncode == 1
    assert "backup_fault" in done.stderr
    lost = digest_of_name(blob.name)
    names = {"blob": lost, "no blob": lost, "database": database.name, "schema": "9"}
    assert names.get(spoiled, "manifest.json") in done.stderr
    assert not (place / "pubswap.sqlite").exists()
    assert list(place.rglob("blobs/*/*")) == []


def test_a_restore_changes_nothing_in_the_backup_and_fills_a_place_for_its_owner_only(
    kept: Kept, tmp_path: Path
) -> None:
    """A copy of the backup may have other modes, on a disk where they cannot be changed."""
    folder, place = tmp_path / "backup", tmp_path / "place"
    shutil.copytree(kept.folder, folder)
    (folder / "blobs").chmod(0o755)
    before = {path: path.stat().st_ctime_ns for path in [folder, *folder.rglob("*")]}
    restore(kept.settings.model_copy(update={"data_dir": place}), folder, progress_bar())
    assert {path: path.stat().st_ctime_ns for path in [folder, *folder.rglob("*")]} == before
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_place_that_is_not_empty_is_refused_and_a_restore_that_was_cut_goes_on(
    kept: Kept, tmp_path: Path
) -> None:
    """Existing rows or blobs are never mixed with the backup's."""
    done = admin(kept.settings, "restore", str(kept.folder))
    assert (done.returncode, "database is not empty" in done.stderr) == (1, True)
    place = kept.settings.model_copy(update={"data_dir": tmp_path})
    shutil.copytree(kept.folder / "blobs", tmp_path / "blobs")
    other = tmp_path / "blobs" / "ab" / ("ab" * 32)
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(b"somebody's")
    with pytest.raises(BackupFault, match="1 blobs that are not in this backup"):
        restore(place, kept.folder, progress_bar())
    with pytest.raises(InvalidSettings, match="No coordinator has used"):
        verify(place, progress_bar())
    other.unlink()
    next((tmp_path / "blobs").rglob("*/*")).unlink()
    restore(place, kept.folder, progress_bar())
    assert verify(place, progress_bar()).healthy


def test_a_lost_blob_stops_a_backup_unless_that_is_allowed(kept: Kept, tmp_path: Path) -> None:
    """The operator is told, and may continue; the restored storage lacks only that blob."""
    settings = kept.settings.model_copy(update={"data_dir": tmp_path / "here"})
    restore(settings, kept.folder, progress_bar())
    lost = next((settings.data_dir / "blobs").rglob("*/*"))
    lost.unlink()
    done = admin(settings, "backup", str(tmp_path / "backup"))
    assert done.returncode == 1
    assert digest_of_name(lost.name) in done.stderr
    assert "--allow-missing" in done.stderr
    assert not (tmp_path / "backup" / "manifest.json").exists()
    done = admin(settings, "backup", str(tmp_path / "backup"), "--allow-missing")
    assert done.returncode == 0, done.stderr
    place = settings.model_copy(update={"data_dir": tmp_path / "there"})
    restore(place, tmp_path / "backup", progress_bar())
    (one,) = verify(place, progress_bar()).lost
    assert one.digest == digest_of_name(lost.name)


def test_a_backup_of_an_earlier_schema_is_restored(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a later release, which migrates the backup's rows before copying them."""
    upgrade_to_next_release(monkeypatch, tmp_path / "migrations")
    place = kept.settings.model_copy(update={"data_dir": tmp_path / "place"})
    restore(place, kept.folder, progress_bar())
    with closing(sqlite3.connect(place.data_dir / "pubswap.sqlite")) as rows:
        ((name,),) = rows.execute("SELECT name FROM runs")
        assert name.endswith("-upgraded")
        assert rows.execute("SELECT version_num FROM alembic_version").fetchall() == [("next",)]
    assert verify(place, progress_bar()).healthy


def test_the_operator_token_is_in_a_backup_only_if_asked_for(kept: Kept, tmp_path: Path) -> None:
    """It is restored readable by its owner only, or not at all; a later backup may drop it."""
    settings = kept.settings.model_copy(update={"operator_token": None})
    settings.token_file.write_text("the-operator's-own\n")
    folder, place = tmp_path / "backup", settings.model_copy(update={"data_dir": tmp_path / "new"})
    assert admin(settings, "backup", str(folder), "--with-token").returncode == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    restore(place, folder, progress_bar())
    assert place.token_file.read_text() == "the-operator's-own\n"
    assert place.token_file.stat().st_mode & 0o777 == 0o600
    (folder / "operator-token").unlink()  # a copy made by a user who may not read it
    lacking = settings.model_copy(update={"data_dir": tmp_path / "lacking"})
    with pytest.raises(BackupFault, match="nothing was restored"):
        restore(lacking, folder, progress_bar())
    assert not lacking.data_dir.exists()
    backup(settings, folder, progress_bar())
    assert all(b"the-operator" not in path.read_bytes() for path in files_of(folder))
    refused = admin(kept.settings, "backup", str(tmp_path / "another"), "--with-token")
    assert "PUBSWAP_OPERATOR_TOKEN" in refused.stderr


def files_of(folder: Path) -> list[Path]:
    """All files in a folder, at any depth."""
    return [path for path in folder.rglob("*") if path.is_file()]


def test_mistakes_are_told_with_what_to_do(kept: Kept, tmp_path: Path) -> None:
    """A wrong folder, an unused database, a folder with other files, a backup into itself."""
    nowhere = kept.settings.model_copy(update={"data_dir": tmp_path / "nowhere"})
    for command in (("backup", str(tmp_path / "b")), ("verify",)):
        done = admin(nowhere, *command)
        assert (done.returncode, "--data-dir" in done.stderr) == (1, True), done.stderr
        assert not nowhere.data_dir.exists()
    assert admin(kept.settings, "backup", str(tmp_path / "b")).returncode == 0
    for inside in (tmp_path / "b", tmp_path / "b" / "blobs"):
        into = kept.settings.model_copy(update={"data_dir": inside})
        done = admin(into, "restore", str(tmp_path / "b"))
        assert "is the backup itself, or in it" in done.stderr
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "thesis.tex").touch()
    done = admin(kept.settings, "backup", str(tmp_path / "documents"))
    assert "holds other things, such as thesis.tex" in done.stderr
    away = kept.settings.model_copy(
        update={"database_url": "postgresql+psycopg://u:the-password@127.0.0.1:1/none"}
    )
    done = admin(away, "verify")
    assert "cannot be used: connection failed" in done.stderr
    assert "the-password" not in done.stderr
