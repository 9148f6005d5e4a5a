"""The doctor's checks of the state folder."""

from pathlib import Path
from typing import Any

import pytest

from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Outcome
from pubswap_client.doctor.state_folder import check_daemon, check_membership
from pubswap_client.settings import ClientSettings
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import StoredMembership, save_membership
from pubswap_protocol.errors import Forbidden, InvalidSettings
from pubswap_protocol.messages import Membership, Role
from support.client.examined import facts_of


def stored(role: Role) -> StoredMembership:
    membership = Membership(run="r", run_name="run", name="a", role=role, token="secret")
    return StoredMembership(coordinator="http://c", membership=membership)


def at(folder: Path, **found: Any) -> Facts:
    return facts_of(ClientSettings(state=folder), **found)


def test_a_folder_that_is_missing_says_how_to_get_one(tmp_path: Path) -> None:
    """Enrolling creates it."""
    with pytest.raises(InvalidSettings, match="pubswap client enroll"):
        check_membership(at(tmp_path / "none"))


def test_a_membership_is_for_its_role_alone(tmp_path: Path) -> None:
    """The finding names the run, and never the token; an evaluator's is refused as by a start."""
    save_membership(tmp_path, stored(Role.CLIENT))
    found = check_membership(at(tmp_path))
    assert found.outcome is Outcome.OK
    assert "a in the run run" in found.found and "secret" not in found.found + found.advice
    save_membership(tmp_path, stored(Role.EVALUATOR))
    facts = at(tmp_path)
    with pytest.raises(Forbidden, match="Use `pubswap evaluate"):
        check_membership(facts)
    assert facts.stored is None


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
