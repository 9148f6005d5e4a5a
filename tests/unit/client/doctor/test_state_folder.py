"""The doctor's checks of the state folder."""

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, Outcome
from pubswap_client.doctor.state_folder import (
    check_daemon,
    check_disk,
    check_folder,
    check_membership,
)
from pubswap_client.settings import ClientSettings
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol.messages import Membership, Role
from pubswap_protocol.model import ModelCard
from pubswap_protocol.tensors.adapter import AdapterLayout
from support.client.examined import facts_of

LAYOUT = AdapterLayout(tensors={"a": (1000, 1000)})


def stored(role: Role) -> StoredMembership:
    membership = Membership(run="r", run_name="run", name="a", role=role, token="secret")
    return StoredMembership(coordinator="http://c", membership=membership)


def at(folder: Path, **found: Any) -> Facts:
    return facts_of(ClientSettings(state=folder), **found)


def membership(folder: Path, enrolled: Role, role: Role) -> Finding:
    save_membership(folder, stored(enrolled))
    return check_membership(at(folder, role=role))


def test_a_folder_that_can_be_written_to_is_well(tmp_path: Path) -> None:
    """The check itself writes nothing."""
    assert check_folder(at(tmp_path)).outcome is Outcome.OK
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_says_how_to_get_one(tmp_path: Path) -> None:
    """Enrolling creates it."""
    found = check_folder(at(tmp_path / "none"))
    assert found.outcome is Outcome.FAILURE
    assert "pubswap client enroll" in found.advice


def test_a_folder_of_somebody_else_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice is the command that fixes it."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = check_folder(at(tmp_path))
    assert found.outcome is Outcome.FAILURE
    assert f"chown -R $(id -un) {tmp_path}" in found.advice


@pytest.mark.parametrize(
    ("role", "other", "command"),
    [
        (Role.CLIENT, Role.EVALUATOR, "pubswap evaluate"),
        (Role.EVALUATOR, Role.CLIENT, "pubswap client start"),
    ],
)
def test_a_membership_is_for_its_role_alone(
    role: Role, other: Role, command: str, tmp_path: Path
) -> None:
    """The finding names its role and what that is for, and never the token."""
    assert membership(tmp_path, role, role).outcome is Outcome.OK
    found = membership(tmp_path, other, role)
    assert found.outcome is Outcome.FAILURE
    assert command in found.advice
    assert f"--role {other}" in found.advice
    assert "secret" not in found.found + found.advice


def test_a_running_daemon_is_a_warning_and_is_not_disturbed(tmp_path: Path) -> None:
    """The finding names its process; the check neither creates a lock file nor holds the lock."""
    assert check_daemon(at(tmp_path)).outcome is Outcome.OK
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        found = check_daemon(at(tmp_path))
        assert found.outcome is Outcome.WARNING
        assert "kill " in found.advice
    assert check_daemon(at(tmp_path)).outcome is Outcome.OK
    with locked(tmp_path):
        pass


def test_a_disk_without_room_for_two_checkpoints_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint has the size of three adapters, and the old one stays while the next is
    written.
    """
    usage = namedtuple("usage", "free")
    needed = 2 * 3 * LAYOUT.file_bytes
    card = ModelCard.model_construct(layout=LAYOUT)
    facts = at(tmp_path, card=card, stored=stored(Role.CLIENT))
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(needed))
    assert check_disk(facts).outcome is Outcome.OK
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(needed - 2_000_000))
    found = check_disk(facts)
    assert found.outcome is Outcome.FAILURE
    assert "Free 2.0 MB there" in found.advice
