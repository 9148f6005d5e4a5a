"""The doctor's checks against a real coordinator."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pubswap_client.consent.policy import policy_path
from pubswap_client.demo.processes import free_port
from pubswap_client.doctor import coordinator
from pubswap_client.doctor.coordinator import (
    check_coordinator,
    check_public_prompts,
    check_run,
    check_test_prompts,
)
from pubswap_client.doctor.facts import Facts
from pubswap_client.doctor.findings import Finding, Outcome, ok
from pubswap_client.settings import ClientSettings
from pubswap_client.state.membership import StoredMembership
from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidProblems
from pubswap_protocol.messages import Membership, Role, RunView
from pubswap_protocol.problems import PromptLimit
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
    return check_coordinator(facts_of(ClientSettings(state=folder), stored=member))


def run_found(folder: Path, member: StoredMembership) -> tuple[Finding, RunView | None]:
    """The finding, and the run for later checks."""
    settings, answers = ClientSettings(state=folder), {"coordinator": ok("it answers")}
    facts = facts_of(settings, stored=member, findings=answers)
    facts.run = None
    return check_run(facts), facts.run


def prompted(folder: Path, member: StoredMembership, most: int) -> Facts:
    """A member whose tokenizer has a token for each character, and takes this many."""
    tokenizer = SimpleNamespace(limit=lambda run: PromptLimit(most, len))
    return facts_of(ClientSettings(state=folder), stored=member, tokenizer=tokenizer)


def test_a_good_token_gives_the_run(server: Server, tmp_path: Path) -> None:
    """The finding names its state and round."""
    federation = begun(server)
    assert coordinator_found(tmp_path, stored(federation, "a")).outcome is Outcome.OK
    found, run = run_found(tmp_path, stored(federation, "a"))
    assert found.outcome is Outcome.OK
    assert "training in round 1 of 2" in found.found
    assert run is not None
    assert run.id == federation.run.id


def test_public_prompts_are_counted_as_this_member_encodes_them(
    server: Server, tmp_path: Path
) -> None:
    """The coordinator has no chat template, so the doctor counts tokens before training."""
    federation = begun(server)
    member = stored(federation, "a")
    fine = check_public_prompts(prompted(tmp_path, member, len("Say 11.")))
    assert fine is not None
    assert fine.outcome is Outcome.OK and "12 of them" in fine.found
    with pytest.raises(InvalidProblems, match=r"2 of 12 .* line 11 \(p10: 7 tokens\)"):
        check_public_prompts(prompted(tmp_path, member, len("Say 9.")))


def test_an_evaluator_s_test_problems_are_counted_likewise(server: Server, tmp_path: Path) -> None:
    """For the set that it will evaluate."""
    member = stored(begun(server), "judge")
    found = check_test_prompts(prompted(tmp_path, member, 100))
    assert found.outcome is Outcome.OK and "5 of them" in found.found


def test_a_revoked_token_is_said_to_be_one(server: Server, tmp_path: Path) -> None:
    """The advice says how to get a new one."""
    federation = begun(server)
    federation.operator.revoke(federation.run.id, "b")
    found, run = run_found(tmp_path, stored(federation, "b"))
    assert run is None
    assert found.outcome is Outcome.FAILURE
    assert "revoked" in found.found
    assert f"enroll --coordinator {server.url}" in found.advice


def test_a_run_that_is_not_there_is_a_failure(server: Server, tmp_path: Path) -> None:
    """A token does not help if the coordinator does not know its run."""
    found, run = run_found(tmp_path, stored(begun(server), "a", run="nowhere"))
    assert run is None
    assert found.outcome is Outcome.FAILURE
    assert "invite" in found.advice


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
    assert "Install the version" in found.advice


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
    assert "firewall" in found.advice


def test_another_protocol_is_a_failure(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice is to install the operator's version."""
    member = stored(begun(server), "a")
    monkeypatch.setattr(paths, "PROTOCOL_VERSION", "99")
    found = coordinator_found(tmp_path, member)
    assert found.outcome is Outcome.FAILURE
    assert "version" in found.advice


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
