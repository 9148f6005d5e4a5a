"""Several processes of one organisation: the same numbers as one, and none left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from support.client.models import save_model
from support.coordinator.processes import (
    ONE_THREAD,
    Coordinator,
    client_command,
    create_run,
    enroll,
    serve,
    start,
    wait_finished,
)
from support.forked import Forked, ForkedProcesses

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).parents[1] / "support" / "client" / "crewed.py"
SingleProcess = Callable[[int, str], dict[str, Any]]
Pair = tuple[subprocess.Popen[str], list[psutil.Process]]
TESTS = str(Path(__file__).parents[1])
PATHS = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}


def command(model: Path, out: Path, processes: int, kind: str, rows: int) -> list[str]:
    arguments = [str(model), str(out), str(processes), kind, str(rows)]
    return [sys.executable, str(PROGRAM), *arguments]


def run(model: Path, out: Path, processes: int, kind: str, rows: int) -> dict[str, Any]:
    out.parent.mkdir(exist_ok=True)
    done = subprocess.run(
        command(model, out, processes, kind, rows),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out.with_suffix(".npz")) as arrays:
        factors = {name: arrays[name] for name in arrays}
    found: dict[str, Any] = json.loads(out.read_text())
    return found | {"factors": factors}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3."""
    return save_model(tmp_path_factory.mktemp("qwen3"), "qwen3", initializer_range=0.1)


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> SingleProcess:
    """A function (rows, kind) that gives what one process does; it does it once."""
    return cache(lambda rows, kind: run(model, tmp_path_factory.mktemp("one") / "o", 1, kind, rows))


@pytest.mark.parametrize(
    ("processes", "kind", "rows"),
    [(2, "plain", 4), (3, "sharded", 2), (3, "private sharded", 2)],
)
def test_processes_together_do_what_one_does(
    alone: SingleProcess, model: Path, tmp_path: Path, processes: int, kind: str, rows: int
) -> None:
    """Losses and factors within 1e-5 over gloo, the same tokens sampled; sharded, less is held.

    With three processes and two responses to a prompt, one process has nothing left to compute
    in the second step and must still take part in every layer.
    """
    one = alone(rows, "private" if "private" in kind else "plain")
    several = run(model, tmp_path / "several.json", processes, kind, rows)
    assert several["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert several["tokens"] == one["tokens"]
    for name, array in one["factors"].items():
        assert np.abs(several["factors"][name] - array).max() <= 1e-5
    if "sharded" in kind:
        assert several["held"] < 0.8 * one["held"]
    else:
        assert several["held"] == one["held"]


def test_each_process_samples_its_part_of_the_prompts_by_a_vllm_of_its_own(
    model: Path, tmp_path: Path
) -> None:
    """Draws are keyed by place: two processes sample what one samples, and train as it does.

    vLLM is a stand-in where it is not installed.
    """
    one = run(model, tmp_path / "one" / "out.json", 1, "vllm", 4)
    two = run(model, tmp_path / "two" / "out.json", 2, "vllm", 4)
    assert two["tokens"] == one["tokens"]
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert not list(tmp_path.glob("two/adapters*"))


@pytest.fixture
def pair(model: Path, tmp_path: Path) -> Iterator[Pair]:
    """A leader that is busy for long, and its follower."""
    arguments = command(model, tmp_path / "out.json", 2, "busy", 4)
    leader = subprocess.Popen(arguments, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "out.busy").exists():
        assert leader.poll() is None, leader.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(leader.pid).children()
    yield leader, children
    leader.kill()
    leader.communicate()


def test_followers_do_not_outlive_a_killed_leader(pair: Pair) -> None:
    """Whatever they were doing, and without being told."""
    leader, children = pair
    assert len(children) == 1
    leader.send_signal(signal.SIGKILL)
    leader.wait()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert len(gone) == 1
    assert alive == []


def test_a_leader_does_not_wait_for_a_dead_follower(pair: Pair) -> None:
    """It ends with an error that says what to do, for whatever restarts it."""
    leader, children = pair
    children[0].kill()
    assert leader.wait(20) == 70
    assert leader.stderr is not None
    assert "Start again to go on from the last step" in leader.stderr.read()


def daemon(state: Path) -> Forked:
    """A client of two processes, whose private problems are already there."""
    command = client_command(state, 3, more=["--processes", "2"])
    return Forked(command, state.with_suffix(".log"), env=os.environ | ONE_THREAD)


def trained(folder: Path, ends: Sequence[tuple[int, signal.Signals]]) -> bytes:
    """The adapter of a client that is ended by these signals once these steps are made."""
    folder.mkdir()
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api:
            run = create_run(coordinator, {"clients": 1, "rounds": 1, "local_steps": 8})
            state = enroll(coordinator, run, "alpha")
            start(coordinator, run)
            for steps, number in ends:
                life = daemon(state)
                while made(coordinator, run.id) < steps:
                    assert life.poll() is None
                    time.sleep(0.01)
                others = psutil.Process(life.pid).children()  # the follower, and a verifier's
                assert len(others) >= 2
                life.send_signal(number)
                status = life.wait(20)
                assert status == (130 if number == signal.SIGTERM else -number)
                assert psutil.wait_procs(others, timeout=10)[1] == []
            life = daemon(state)
            wait_finished(coordinator, run)
            assert life.wait(30) == 0
            return coordinator.api.global_adapter(run.id, "final")


def made(coordinator: Coordinator, run: str) -> int:
    """Steps that the client has reported."""
    (member,) = coordinator.api.members(run).members
    return member.progress.step if member.progress else 0


@pytest.mark.usefixtures("unmeasured")
def test_a_client_of_two_processes_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    """By SIGTERM and by SIGKILL; it leaves no process behind, and ends with the same bits."""
    undisturbed = trained(tmp_path / "undisturbed", [])
    ends = [(2, signal.SIGTERM), (4, signal.SIGKILL)]
    assert trained(tmp_path / "ended", ends) == undisturbed
