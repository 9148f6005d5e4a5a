"""`pubswap client doctor` with a real coordinator: it finds faults and changes nothing."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.consent.ledger import ledger_folder
from pubswap_client.demo.demos import MODEL
from pubswap_client.state.journal import Journal, JournalOwner
from pubswap_client.state.membership import load_membership, save_membership
from pubswap_protocol.messages import MemberView, RunView
from pubswap_protocol.problems import Problem, write_problems
from support.coordinator.processes import (
    ONE_THREAD,
    Coordinator,
    create_run,
    enroll,
    serve,
    start,
    start_client,
    sums,
    wait_finished,
)
from support.eventually import until
from support.forked import ForkedProcesses, pubswap

pytestmark = pytest.mark.usefixtures("unmeasured")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """A real coordinator for the examinations of this file."""
    folder = tmp_path_factory.mktemp("doctor")
    with ForkedProcesses(folder / "logs") as processes:
        running = serve(processes, folder)
        with running.api:
            yield running


def doctor(state: Path, data: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, as on a wide terminal."""
    options = ["--state", str(state), "--data", str(data), "--model", str(MODEL), "--threads", "1"]
    env = os.environ | ONE_THREAD | {"COLUMNS": "200"}
    return pubswap("client", "doctor", *options, *more, env=env)


def examined(state: Path, data: Path) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The report as JSON, and its findings by name."""
    done = doctor(state, data, "--json")
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["healthy"] else 1)
    return report, {finding["name"]: finding for finding in report["findings"]}


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder except the ledger's: its modification time and bytes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and ledger_folder(folder) not in path.parents
    }


def reported_seconds(state: Path, run: RunView) -> float:
    """The seconds of the steps in the last round that a client reported.

    Not of the first round, because it includes loading libraries, which takes little of a real
    round but much of one here.
    """
    kept = Journal(state / "progress", JournalOwner.of(run, state.name)).checkpoint()
    assert kept is not None
    return sum(step.seconds for step in kept.steps)


def seen_there(coordinator: Coordinator, run: RunView) -> tuple[list[MemberView], RunView, int]:
    """All that the operator can see of a run, except when members were last seen."""
    events = coordinator.api.events(run.id).events
    unseen = {"last_seen": None, "unseen_seconds": None}
    members = [m.model_copy(update=unseen) for m in coordinator.api.members(run.id).members]
    view = coordinator.api.run(run.id).model_copy(update={"members": []})
    return members, view, len(events)


@pytest.mark.full
def test_all_is_well_and_the_prediction_holds(coordinator: Coordinator) -> None:
    """It exits with 0, changes only the ledger, and its prediction is about right."""
    overrides = {"name": "healthy", "clients": 1, "rounds": 2, "local_steps": 8}
    run = create_run(coordinator, overrides)
    state = enroll(coordinator, run, "well")
    data = state / "private.jsonl"
    write_problems(data, sums(3, 32))
    before, there = contents(state), seen_there(coordinator, run)

    report, findings = examined(state, data)

    assert report["healthy"], [f for f in report["findings"] if f["status"] == "failure"]
    assert not [name for name, found in findings.items() if found["status"] == "skipped"]
    assert contents(state) == before
    assert seen_there(coordinator, run) == there
    assert "waiting for peers" in findings["prediction"]["found"]

    start_client(coordinator, state, seed=3)
    start(coordinator, run)
    view = wait_finished(coordinator, run)
    member = next(m for m in coordinator.api.members(run.id).members if m.name == "well")
    predicted, seconds = report["prediction"], reported_seconds(state, run)
    assert seconds / 3 <= predicted["round_seconds"] <= 3 * seconds
    assert 2 * predicted["bytes_up"] == pytest.approx(member.traffic.up, rel=0.1)
    assert 2 * predicted["bytes_down"] == pytest.approx(member.traffic.down, rel=0.1)
    assert view.rounds[-1].updates == 1


@pytest.mark.full
def test_several_faults_are_named_at_once_with_what_to_do(coordinator: Coordinator) -> None:
    """An overlong prompt and an unmatchable answer, then a revoked token; it exits with 1."""
    run = create_run(coordinator, {"name": "ill"})
    state = enroll(coordinator, run, "unwell")
    data = state / "private.jsonl"
    long = Problem(id="long", prompt="1 + " * 2000 + "1 =", answer="2001", verifier="math")
    unmatched = Problem(id="unmatched", prompt="A or B?", answer="B. the second", verifier="choice")
    write_problems(data, [*sums(3, 8), long, unmatched])

    report, findings = examined(state, data)

    assert not report["healthy"]
    assert "line 9" in findings["prompt lengths"]["found"]
    assert "Shorten or remove" in findings["prompt lengths"]["advice"]
    assert findings["answers"]["status"] == "failure"
    assert "unmatched" in findings["answers"]["found"]
    assert "one letter" in findings["answers"]["advice"]
    assert findings["coordinator"]["status"] == "ok"
    assert findings["trial step"]["status"] == "skipped"

    stored = load_membership(state)
    wrong = stored.membership.model_copy(update={"token": "no-such-token"})
    save_membership(state, stored.model_copy(update={"membership": wrong}))
    _, findings = examined(state, data)
    assert findings["token and run"]["status"] == "failure"
    assert "may have been revoked" in findings["token and run"]["found"]
    assert "pubswap client enroll" in findings["token and run"]["advice"]
    assert findings["private data"]["status"] == "ok"

    table = doctor(state, data, "--no-trial")
    assert table.returncode == 1
    for words in ("✗ failure", "✓ ok", "- skipped", "what to do"):
        assert words in table.stdout
    assert "the second" not in table.stdout + table.stderr


@pytest.mark.full
def test_beside_a_daemon_at_work_all_but_the_trial_is_checked(coordinator: Coordinator) -> None:
    """A warning names the process; the daemon keeps its lock, its memory and its folder."""
    run = create_run(coordinator, {"name": "busy", "clients": 1, "rounds": 1})
    state = enroll(coordinator, run, "worker")
    start_client(coordinator, state, seed=3)
    log = coordinator.folder / "logs" / "worker.log"
    until(lambda: "joins run" in log.read_text())
    coordinator.processes.check()
    holder = (state / "lock").read_text().strip()
    report, findings = examined(state, state / "private.jsonl")
    assert report["healthy"]
    assert findings["daemon"]["status"] == "warning"
    assert f"process {holder}" in findings["daemon"]["found"]
    assert findings["packed path"]["status"] == "ok"
    assert findings["trial step"]["status"] == findings["prediction"]["status"] == "skipped"
    start(coordinator, run)
    assert wait_finished(coordinator, run).rounds[-1].updates == 1


@pytest.mark.full
def test_the_trial_step_takes_all_processes(coordinator: Coordinator) -> None:
    """As many as training would, and leaves none behind."""
    run = create_run(coordinator, {"name": "several"})
    state = enroll(coordinator, run, "crewed")
    data = state / "private.jsonl"
    write_problems(data, sums(3, 16))
    done = doctor(state, data, "--processes", "2", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["prediction"]["round_seconds"] > 0


def test_settings_that_are_wrong_are_said_alone(tmp_path: Path) -> None:
    """Without valid settings nothing else can be checked."""
    config = tmp_path / "client.toml"
    config.write_text("threads = 0\n")
    done = doctor(tmp_path, tmp_path / "none", "--config", str(config), "--threads", "0", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "threads" in done.stderr and len(done.stderr.splitlines()) == 1
