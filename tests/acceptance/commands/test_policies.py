"""Policies in a federation of real processes."""

import json
from pathlib import Path

import pytest

from pubswap_client.consent.ledger import Entry, entries, ledger_folder
from pubswap_client.consent.policy import policy_path
from pubswap_client.state.status import STATUS
from pubswap_protocol import paths
from pubswap_protocol.messages import Away, ChangeRun
from support.coordinator.processes import (
    Coordinator,
    create_run,
    enroll,
    serve,
    start,
    start_client,
)
from support.eventually import until
from support.forked import ForkedProcesses, pubswap

pytestmark = pytest.mark.usefixtures("unmeasured")


def reason(coordinator: Coordinator, run: str, name: str) -> Away | None:
    """Why a member is away, as the operator sees it."""
    coordinator.processes.check()
    return {m.name: m.away for m in coordinator.api.members(run).members}[name]


def updates(coordinator: Coordinator, run: str) -> list[int]:
    """Number of updates in each averaged round."""
    return [summary.updates for summary in coordinator.api.rounds(run, 0) if summary.adapter]


def doing(state: Path) -> str:
    """A member's activity, as `client status` reports it."""
    path = state / STATUS
    return str(json.loads(path.read_text())["doing"]) if path.exists() else ""


def code_of(away: Away | None) -> str | None:
    """The code of why a member is away, or None if it is not."""
    return away and away.code


def last_sent(state: Path) -> Entry:
    """A member's newest entry in its ledger."""
    return [*entries(ledger_folder(state))][-1]


def kinds(state: Path) -> set[str]:
    """The kinds of requests that a member has sent."""
    folder = ledger_folder(state)
    return {entry.kind for entry in entries(folder)} if folder.is_dir() else set()


@pytest.mark.full
def test_a_member_whose_policy_refuses_is_away_and_comes_back_when_it_allows(
    tmp_path: Path,
) -> None:
    """The other goes on alone; approved, it takes part; restricted in mid-run, it is away again.

    Until approved, it has sent no hello, no responses and no adapter.
    """
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            run = create_run(coordinator, {"rounds": 1000})
            states = {name: enroll(coordinator, run, name) for name in ("alpha", "beta")}
            alpha = states["alpha"]
            policy_path(alpha).write_text('approve = "first"\n')
            for seed, state in enumerate(states.values(), start=3):
                start_client(coordinator, state, seed)
            start(coordinator, run)
            until(lambda: len(updates(coordinator, run.id)) >= 2)
            assert set(updates(coordinator, run.id)) == {1}
            until(lambda: reason(coordinator, run.id, "alpha") is not None)
            away = reason(coordinator, run.id, "alpha")
            assert away is not None and away.code == "not_approved"
            until(lambda: "Nobody at this organisation has approved the run yet." in doing(alpha))
            assert kinds(alpha) == {"question", "away"}
            checked = pubswap("client", "policy", "check", "--state", str(alpha))
            assert checked.returncode == 1 and "refused: not_approved" in checked.stdout
            done = pubswap("client", "approve", "--state", str(alpha), "--yes")
            assert done.returncode == 0, done.stderr
            until(lambda: 2 in updates(coordinator, run.id))
            assert reason(coordinator, run.id, "alpha") is None
            policy_path(alpha).write_text("limits.grpo.max_response_tokens.max = 31\n")
            until(lambda: reason(coordinator, run.id, "alpha") is not None)
            away = reason(coordinator, run.id, "alpha")
            assert away is not None and away.code == "setting_not_allowed"
            assert away.detail.endswith("This organisation allows: at most 31.")
            until(lambda: "setting_not_allowed" in doing(alpha))
            so_far = len(updates(coordinator, run.id))
            until(lambda: len(updates(coordinator, run.id)) > so_far + 1)
            assert updates(coordinator, run.id)[-1] == 1
            api.move_run(run.id, paths.RUN_CANCEL)


@pytest.mark.full
def test_a_changed_number_of_clients_is_asked_about_before_the_start(tmp_path: Path) -> None:
    """A waiting daemon is away until a person has seen that line, and then takes part.

    It needs no restart, and neither does one whose policy allows the range.
    """
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            run = create_run(coordinator, {"clients": 3})
            states = {name: enroll(coordinator, run, name) for name in ("alpha", "beta")}
            alpha, beta = states.values()
            for seed, state in enumerate(states.values(), start=3):
                start_client(coordinator, state, seed)
                until(lambda state=state: "hello" in kinds(state))
            with policy_path(beta).open("a") as policy:
                policy.write("limits.clients = {min = 2, max = 3}\n")
            api.change_run(run.id, ChangeRun(clients=2))
            until(lambda: code_of(reason(coordinator, run.id, "alpha")) == "not_approved")
            away = reason(coordinator, run.id, "alpha")
            assert away is not None and away.detail.endswith("clients 3 -> 2.")
            done = pubswap("client", "approve", "--state", str(alpha), "--yes")
            assert done.returncode == 0, done.stderr
            assert "approved the run: clients 3 -> 2." in " ".join(done.stdout.split())
            until(lambda: reason(coordinator, run.id, "alpha") is None)
            start(coordinator, run)
            until(lambda: 2 in updates(coordinator, run.id))
            assert "away" not in kinds(beta)
            api.move_run(run.id, paths.RUN_CANCEL)


# Edits of the policy while the daemon runs, and why the member is away after each.
EDITS = [
    ('coordinators = ["https://another.example"]', "coordinator_not_allowed"),
    ("max_rnak = 8", "policy_unreadable"),
    ("limits.lora.rank.max = 4", "setting_not_allowed"),
    ("send_responses = false", "responses_not_allowed"),
]


@pytest.mark.full
def test_a_policy_that_changes_in_mid_run_takes_hold_without_a_restart(tmp_path: Path) -> None:
    """The member is away with the reason, the other goes on, and only the reason is sent.

    A coordinator that the policy no longer names, or must not name, gets no request at all. Once
    the file is restored, the member is back in the run.
    """
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            run = create_run(coordinator, {"rounds": 1000})
            states = {name: enroll(coordinator, run, name) for name in ("alpha", "beta")}
            alpha = states["alpha"]
            for seed, state in enumerate(states.values(), start=3):
                start_client(coordinator, state, seed)
            start(coordinator, run)
            until(lambda: 2 in updates(coordinator, run.id))
            before = policy_path(alpha).read_text()
            for text, code in EDITS:
                policy_path(alpha).write_text(text)
                # It may have read the half-written file, and be away because of that first.
                until(lambda code=code: code_of(reason(coordinator, run.id, "alpha")) == code)
                until(lambda code=code: code in doing(alpha))
                told = last_sent(alpha)
                assert told.kind == "away", text
                so_far = len(updates(coordinator, run.id))
                until(lambda so_far=so_far: len(updates(coordinator, run.id)) > so_far + 1)
                assert updates(coordinator, run.id)[-1] == 1, text
                silent = code in ("coordinator_not_allowed", "policy_unreadable")
                later = [e for e in entries(ledger_folder(alpha)) if e.number > told.number]
                assert {e.kind for e in later} <= (set() if silent else {"question"}), text
                policy_path(alpha).write_text(before)
                until(lambda: reason(coordinator, run.id, "alpha") is None)
                so_far = len(updates(coordinator, run.id))
                until(lambda so_far=so_far: 2 in updates(coordinator, run.id)[so_far:])
            api.move_run(run.id, paths.RUN_CANCEL)
