"""`pubswap admin verify` finds blobs that are lost, damaged, or not the mean of the updates."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.messages import Evaluation
from pubswap_server.admin import verify
from pubswap_server.database.engine import Database
from pubswap_server.database.naming import NAMING_NOTHING, digest_columns
from pubswap_server.database.tables import Base, RoundRow, SubmissionRow, UpdateRow
from pubswap_server.settings import ServerSettings
from pubswap_server.storage.store import file_name, folder_name
from support.coordinator.coordinator import begun, serving, settings_for
from support.coordinator.places import admin


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSettings]:
    """A run of two rounds, weighted by examples, with an exchange."""
    settings = settings_for(tmp_path_factory.mktemp("finished"))
    with serving(settings) as server, server.closing:
        fed = begun(server, aggregation={"weights": {"name": "examples", "max_share": 1.0}})
        for name, right in (("a", [0, 3]), ("b", [4, 2])):
            body = fed.responses(name, 1, 1, right)
            fed.members[name].submit_responses(fed.run.id, 1, 1, body)
        for round_ in (1, 2):
            fed.submit("a", round_, fed.adapter(round_), examples=30)
            fed.submit("b", round_, fed.adapter(10 + round_), examples=7)
            fed.wait_for(round_)
        found = Evaluation(pass_at_1=0.5, by_topic={}, problems=5, seconds=1)
        fed.members["judge"].submit_evaluation(fed.run.id, 0, found)
    yield settings


def copy(finished: ServerSettings, folder: Path) -> ServerSettings:
    """A copy of the storage that a test may damage."""
    shutil.copytree(finished.data_dir, folder / "place")
    return finished.model_copy(update={"data_dir": folder / "place"})


def verified(settings: ServerSettings) -> tuple[int, dict[str, Any]]:
    """The exit status and the report."""
    done = admin(settings, "verify", "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def blob(settings: ServerSettings, digest: str) -> Path:
    """The path of a blob."""
    return settings.data_dir / "blobs" / folder_name(digest) / file_name(digest)


def first(settings: ServerSettings, column: Any) -> str:
    """One of the digests in a column."""
    database = Database(settings.sqlalchemy_url)
    with Session(database.engine) as session:
        found = session.scalars(select(column).where(column.is_not(None))).first()
    database.close()
    assert isinstance(found, str)
    return found


def test_a_whole_place_is_healthy_and_orphans_are_no_fault(
    finished: ServerSettings, tmp_path: Path
) -> None:
    """Every blob is counted, every round recomputed; a blob that no row references is listed."""
    settings = copy(finished, tmp_path)
    orphan = blob(settings, "blake3:" + "ab" * 32)
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"left over")
    status, report = verified(settings)
    assert status == 0
    assert report["lost"] == report["differing"] == report["unchecked"] == []
    # The tokenizer, two sets, two responses, four updates and three global adapters.
    assert (report["blobs"], report["rounds"]) == (12, 3)
    assert report["orphans"] == ["blake3:" + "ab" * 32]
    assert "12 of 12 blobs" in admin(settings, "verify").stdout


@pytest.mark.parametrize("column", [UpdateRow.stored, SubmissionRow.stored, RoundRow.adapter])
@pytest.mark.parametrize("fault", ["gone", "one bit"])
def test_a_lost_or_damaged_blob_is_named_with_the_receipts_that_rely_on_it(
    finished: ServerSettings, tmp_path: Path, column: Any, fault: str
) -> None:
    """With exit status 1, the digest, and the rows."""
    settings = copy(finished, tmp_path)
    digest = first(settings, column)
    file = blob(settings, digest)
    data = bytearray(file.read_bytes())
    file.unlink()
    if fault == "one bit":
        data[-1] ^= 1
        file.write_bytes(data)
    status, report = verified(settings)
    assert status == 1
    (lost,) = report["lost"]
    assert lost["digest"] == digest
    assert any(use.startswith(column.class_.__tablename__) for use in lost["relied_on_by"])
    assert report["differing"] == []
    said = admin(settings, "verify")
    assert (said.returncode, digest in said.stdout) == (1, True)
    if column is UpdateRow.stored:
        assert digest in report["unchecked"][0]["reason"]


@pytest.mark.parametrize("round_", [0, 1])
def test_an_adapter_that_its_updates_do_not_give_is_found(
    finished: ServerSettings, tmp_path: Path, round_: int
) -> None:
    """A round's adapter is replaced by another one, which is whole and valid."""
    settings = copy(finished, tmp_path)
    database = Database(settings.sqlalchemy_url)
    with Session(database.engine) as session, session.begin():
        other = session.scalars(select(RoundRow.adapter).where(RoundRow.round == 2)).one()
        session.execute(update(RoundRow).where(RoundRow.round == round_).values(adapter=other))
    database.close()
    status, report = verified(settings)
    assert status == 1
    (wrong,) = report["differing"]
    assert wrong["round"].startswith(f"round {round_} of run")
    assert wrong["adapter"] == other != wrong["recomputed"]


def free_first_round(settings: ServerSettings) -> None:
    """Remove its updates, as the coordinator does when it keeps later rounds instead."""
    database, of_it = Database(settings.sqlalchemy_url), UpdateRow.round == 1
    with Session(database.engine) as session, session.begin():
        for digest in session.scalars(select(UpdateRow.stored).where(of_it)):
            blob(settings, digest or "").unlink()
        session.execute(update(UpdateRow).where(of_it).values(stored=None))
    database.close()


def test_a_round_whose_updates_are_freed_meanwhile_is_no_fault(
    finished: ServerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blob that existed during the scan may be deleted before its round is recomputed.

    The local copies of its other blobs are removed as for every round.
    """
    settings, look = copy(finished, tmp_path), verify._check_blobs
    removals: list[object] = []

    def freed_meanwhile(*given: Any) -> None:
        look(*given)
        free_first_round(settings)

    monkeypatch.setattr(verify, "_check_blobs", freed_meanwhile)
    monkeypatch.setattr(verify.Deployment, "forget_fetched", lambda self: removals.append(self))
    report = verify.verify(settings, progress_bar())
    assert report.healthy
    assert report.rounds == 2
    assert len(removals) == report.blobs + 3
    (unchecked,) = report.unchecked
    assert "round 1 of run" in unchecked.round
    assert "freed meanwhile" in unchecked.reason


def test_what_is_only_announced_is_told_apart_from_what_is_stored() -> None:
    """Each exception is an existing column of digests, so that none outlives its column."""
    assert {(c.table.name, c.name) for c in digest_columns()} >= NAMING_NOTHING
    assert Base.metadata.tables.keys() >= {table for table, _ in NAMING_NOTHING}
