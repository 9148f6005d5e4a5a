"""`pubswap client doctor` with a real coordinator: it finds faults and changes nothing."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pubswap_client.consent.ledger import ledger_folder
from pubswap_client.demo.demos import MODEL
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

OK, FAILURE, SKIPPED = "✓ ok", "✗ failure", "- skipped"

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
    """Run the command to its end, as on a terminal in which no cell wraps."""
    options = ["--state", str(state), "--data", str(data), "--model", str(MODEL), "--threads", "1"]
    env = os.environ | ONE_THREAD | {"COLUMNS": "5000"}
    return pubswap("client", "doctor", *options, *more, env=env)


class Row(NamedTuple):
    """A line of the report."""

    status: str
    found: str
    advice: str


def examined(state: Path, data: Path, *more: str) -> dict[str, Row]:
    """The lines of the report by the checks' names."""
    done = doctor(state, data, *more)
    cells = [line.split("│")[1:-1] for line in done.stdout.splitlines() if "│" in line]
    rows = {name.strip(): Row(*(cell.strip() for cell in rest)) for name, *rest in cells}
    assert rows, done.stderr
    assert done.returncode == any(row.status == FAILURE for row in rows.values()), done.stdout
    return rows


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder except the ledger's: its modification time and bytes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and ledger_folder(folder) not in path.parents
    }


def seen_there(coordinator: Coordinator, run: RunView) -> tuple[list[MemberView], RunView, int]:
    """All that the operator can see of a run, except when members were last seen."""
    events = coordinator.api.events(run.id).events
    unseen = {"last_seen": None, "unseen_seconds": None}
    members = [m.model_copy(update=unseen) for m in coordinator.api.members(run.id).members]
    view = coordinator.api.run(run.id).model_copy(update={"members": []})
    return members, view, len(events)


@pytest.mark.full
def test_all_is_well_and_nothing_is_changed(coordinator: Coordinator) -> None:
    """It exits with 0, changes only the ledger, and says how long a round takes."""
    overrides = {"name": "healthy", "clients": 1, "rounds": 2, "local_steps": 8}
    run = create_run(coordinator, overrides)
    state = enroll(coordinator, run, "well")
    data = state / "private.jsonl"
    write_problems(data, sums(3, 32))
    before, there = contents(state), seen_there(coordinator, run)

    rows = examined(state, data)

    assert not {row.status for row in rows.values()} & {FAILURE, SKIPPED}, rows
    assert contents(state) == before
    assert seen_there(coordinator, run) == there
    assert "8 such steps, as in a round, take" in rows["trial step"].found


@pytest.mark.full
def test_several_faults_are_named_at_once_with_what_to_do(coordinator: Coordinator) -> None:
    """An overlong prompt and an unmatchable answer, then a revoked token; it exits with 1."""
    run = create_run(coordinator, {"name": "ill"})
    state = enroll(coordinator, run, "unwell")
    data = state / "private.jsonl"
    long = Problem(id="long", prompt="1 + " * 2000 + "1 =", answer="2001", verifier="math")
    unmatched = Problem(id="unmatched", prompt="A or B?", answer="B. the second", verifier="choice")
    write_problems(data, [*sums(3, 8), long, unmatched])

    rows = examined(state, data)

    assert "line 9" in rows["prompt lengths"].found
    assert "Shorten or remove" in rows["prompt lengths"].advice
    assert rows["answers"].status == FAILURE
    assert "unmatched" in rows["answers"].found and "the second" not in rows["answers"].found
    assert rows["coordinator"].status == OK
    assert rows["trial step"].status == SKIPPED

    stored = load_membership(state)
    wrong = stored.membership.model_copy(update={"token": "no-such-token"})
    save_membership(state, stored.model_copy(update={"membership": wrong}))
    rows = examined(state, data, "--no-trial")
    assert rows["token and run"].status == FAILURE
    assert "not valid" in rows["token and run"].found
    assert "pubswap member reissue" in rows["token and run"].advice
    assert rows["private data"].status == OK


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
    rows = examined(state, state / "private.jsonl")
    assert FAILURE not in {row.status for row in rows.values()}
    assert rows["daemon"].status == "! warning"
    assert f"process {holder}" in rows["daemon"].found
    assert (rows["packed path"].status, rows["trial step"].status) == (OK, SKIPPED)
    start(coordinator, run)
    assert wait_finished(coordinator, run).rounds[-1].updates == 1


@pytest.mark.full
def test_the_trial_step_takes_all_processes(coordinator: Coordinator) -> None:
    """As many as training would, and leaves none behind."""
    run = create_run(coordinator, {"name": "several"})
    state = enroll(coordinator, run, "crewed")
    data = state / "private.jsonl"
    write_problems(data, sums(3, 16))
    rows = examined(state, data, "--processes", "2", "--device", "cpu")
    assert rows["trial step"].status in (OK, "! warning"), rows


def test_settings_that_are_wrong_are_said_alone(tmp_path: Path) -> None:
    """Without valid settings nothing else can be checked."""
    config = tmp_path / "client.toml"
    config.write_text("threads = 0\n")
    done = doctor(tmp_path, tmp_path / "none", "--config", str(config), "--threads", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "threads" in done.stderr and len(done.stderr.splitlines()) == 1
