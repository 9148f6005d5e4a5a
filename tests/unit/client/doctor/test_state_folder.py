"""The doctor's checks of the state folder."""

from collections import namedtuple
from pathlib import Path

import pytest

from pubswap_client.doctor.findings import Status
from pubswap_client.doctor.state_folder import (
    check_daemon,
    check_disk,
    check_folder,
    check_membership,
)
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import StoredMembership
from pubswap_protocol.messages import Membership, Role
from pubswap_protocol.tensors.adapter import AdapterLayout

LAYOUT = AdapterLayout(tensors={"a": (1000, 1000)})


def stored(role: Role) -> StoredMembership:
    membership = Membership(run="r", run_name="run", name="a", role=role, token="secret")
    return StoredMembership(coordinator="http://c", membership=membership)


def test_a_folder_that_can_be_written_to_is_well(tmp_path: Path) -> None:
    """The check itself writes nothing."""
    assert check_folder(tmp_path).status is Status.OK
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_says_how_to_get_one(tmp_path: Path) -> None:
    """Enrolling creates it."""
    found = check_folder(tmp_path / "none")
    assert found.status is Status.FAILURE
    assert "pubswap client enroll" in found.advice


def test_a_folder_of_somebody_else_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice is the command that fixes it."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = check_folder(tmp_path)
    assert found.status is Status.FAILURE
    assert f"chown -R $(id -un) {tmp_path}" in found.advice


@pytest.mark.parametrize(
    ("role", "other", "command"),
    [
        (Role.CLIENT, Role.EVALUATOR, "pubswap evaluate"),
        (Role.EVALUATOR, Role.CLIENT, "pubswap client start"),
    ],
)
def test_a_membership_is_for_its_role_alone(role: Role, other: Role, command: str) -> None:
    """The finding names its role and what that is for, and never the token."""
    assert check_membership(stored(role), role).status is Status.OK
    found = check_membership(stored(other), role)
    assert found.status is Status.FAILURE
    assert command in found.advice
    assert f"--role {other}" in found.advice
    assert "secret" not in found.found + found.advice


def test_a_running_daemon_is_a_warning_and_is_not_disturbed(tmp_path: Path) -> None:
    """The finding names its process; the check neither creates a lock file nor holds the lock."""
    assert check_daemon(tmp_path).status is Status.OK
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path):
        found = check_daemon(tmp_path)
        assert found.status is Status.WARNING
        assert "kill " in found.advice
    assert check_daemon(tmp_path).status is Status.OK
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
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(needed))
    assert check_disk(tmp_path, LAYOUT).status is Status.OK
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(needed - 2_000_000))
    found = check_disk(tmp_path, LAYOUT)
    assert found.status is Status.FAILURE
    assert "Free 2.0 MB there" in found.advice
