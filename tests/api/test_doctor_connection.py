"""The doctor's checks against a real coordinator."""

from pathlib import Path

import pytest

from pubswap_client.consent.policy import policy_path
from pubswap_client.demo.processes import free_port
from pubswap_client.doctor import coordinator
from pubswap_client.doctor.coordinator import check_coordinator, check_run
from pubswap_client.doctor.findings import Finding, Outcome, of_error, ok
from pubswap_client.settings import ClientSettings
from pubswap_client.state.membership import StoredMembership
from pubswap_protocol import paths
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Membership, Role, RunView
from pubswap_protocol.verifiers import verifier_version
from support.client.examined import facts_of
from support.coordinator.coordinator import Federation, Server, begun


def stored(federation: Federation, name: str, **changes: str) -> StoredMembership:
    membership = Membership(
        run=federation.run.id,
        run_name=federation.run.name,
        name=name,
        role=Role.CLIENT,
        token=federation.tokens[name],
    )
    return StoredMembership(
        coordinator=federation.server.url, membership=membership.model_copy(update=changes)
    )


def coordinator_found(folder: Path, member: StoredMembership) -> Finding:
    try:
        return check_coordinator(facts_of(ClientSettings(state=folder), stored=member))
    except PubSwapError as error:  # as `examine` does
        return of_error(error)


def run_found(folder: Path, member: StoredMembership) -> tuple[Finding, RunView | None]:
    """The finding, and the run for later checks."""
    settings, answers = ClientSettings(state=folder), {"coordinator": ok("it answers")}
    facts = facts_of(settings, stored=member, findings=answers)
    facts.run = None
    return check_run(facts), facts.run


def test_a_good_token_gives_the_run(server: Server, tmp_path: Path) -> None:
    """The finding names its state and round."""
    federation = begun(server)
    assert coordinator_found(tmp_path, stored(federation, "a")).outcome is Outcome.OK
    found, run = run_found(tmp_path, stored(federation, "a"))
    assert found.outcome is Outcome.OK
    assert "training in round 1 of 2" in found.found
    assert run is not None
    assert run.id == federation.run.id


def test_a_revoked_token_is_said_to_be_one(server: Server, tmp_path: Path) -> None:
    """The advice says how to get a new one."""
    federation = begun(server)
    federation.operator.revoke(federation.run.id, "b")
    found, run = run_found(tmp_path, stored(federation, "b"))
    assert run is None
    assert found.outcome is Outcome.FAILURE
    assert "revoked" in found.found
    assert "reissue" in found.advice


def test_a_run_that_is_not_there_is_a_failure(server: Server, tmp_path: Path) -> None:
    """A token does not help if the coordinator does not know its run."""
    found, run = run_found(tmp_path, stored(begun(server), "a", run="nowhere"))
    assert run is None
    assert found.outcome is Outcome.FAILURE
    assert "enrol again" in found.advice


def test_a_verifier_of_another_version_is_a_failure(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the client would be refused only after loading the model."""
    federation = begun(server)
    monkeypatch.setattr(coordinator, "verifier_version", lambda name: f"{name}@0")
    found, _ = run_found(tmp_path, stored(federation, "judge"))
    assert found.outcome is Outcome.FAILURE
    ours = verifier_version(federation.run.settings.verifier)
    assert found.found.endswith(f"but the run's verifier is {ours}, ours is exact@0")
    assert "Install the operator's version" in found.advice


def test_a_paused_run_is_a_warning_and_a_cancelled_one_a_failure(
    server: Server, tmp_path: Path
) -> None:
    """A paused run can go on; a cancelled one cannot."""
    federation = begun(server)
    federation.operator.move_run(federation.run.id, paths.RUN_PAUSE)
    assert run_found(tmp_path, stored(federation, "a"))[0].outcome is Outcome.WARNING
    federation.operator.move_run(federation.run.id, paths.RUN_CANCEL)
    found, run = run_found(tmp_path, stored(federation, "a"))
    assert found.outcome is Outcome.FAILURE
    assert "nothing is left to train" in found.found
    assert run is not None


def test_a_coordinator_that_is_away_is_named_with_what_to_check(
    server: Server, tmp_path: Path
) -> None:
    """It is asked once, without endless retries."""
    away = stored(begun(server), "a")
    away = away.model_copy(update={"coordinator": f"http://127.0.0.1:{free_port()}"})
    found = coordinator_found(tmp_path, away)
    assert found.outcome is Outcome.FAILURE
    assert away.coordinator in found.found
    assert "Is it running" in found.advice


def test_another_protocol_is_a_failure(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice is to install the operator's version."""
    member = stored(begun(server), "a")
    monkeypatch.setattr(paths, "PROTOCOL_VERSION", "99")
    found = coordinator_found(tmp_path, member)
    assert found.outcome is Outcome.FAILURE
    assert "install the coordinator's version" in found.found + found.advice


def test_a_policy_that_has_no_such_coordinator_is_said(server: Server, tmp_path: Path) -> None:
    """So is an invalid policy; neither advice suggests another version."""
    member = stored(begun(server), "a")
    policy_path(tmp_path).write_text('coordinators = ["https://c.example"]')
    found = coordinator_found(tmp_path, member)
    assert found.outcome is Outcome.FAILURE
    assert "does not allow the coordinator" in found.found
    assert "Add it to `coordinators`" in found.advice
    policy_path(tmp_path).write_text("max_rnak = 2")
    found = coordinator_found(tmp_path, member)
    assert found.outcome is Outcome.FAILURE
    assert "max_rnak" in found.found + found.advice and "version" not in found.advice
