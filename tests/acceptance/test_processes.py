"""Several processes of one organisation give the same numbers as one, and none is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from pubswap_client.demo.processes import PUBSWAP
from pubswap_protocol.messages import RunView
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
from support.eventually import until
from support.forked import Forked, ForkedProcesses

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).parents[1] / "support" / "client" / "crewed.py"
TESTS = str(Path(__file__).parents[1])
PATHS = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS}
PROCESSES = 3
KINDS = ("plain 4", "sharded 2", "private sharded 2", "vllm 4")


@dataclass(frozen=True)
class Crew:
    """A leader that is sleeping, its followers, and the results of it alone and of all together."""

    leader: subprocess.Popen[str]
    followers: list[psutil.Process]
    folder: Path
    found: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Three processes with a tiny Qwen3 that have done each kind of step, alone and together."""
    model = save_model(tmp_path_factory.mktemp("qwen3"), "qwen3", initializer_range=0.1)
    out = tmp_path_factory.mktemp("crew") / "found.json"
    command = [sys.executable, str(PROGRAM), str(model), str(out), str(PROCESSES), *KINDS]
    leader = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: out.exists() or leader.poll() is not None, 240)
        assert leader.poll() is None, leader.communicate()[1]
        children = psutil.Process(leader.pid).children()
        yield Crew(leader, children, out.parent, json.loads(out.read_text()))
    finally:
        leader.kill()
        leader.communicate()


@pytest.mark.parametrize("kind", KINDS)
def test_processes_together_do_what_one_does(crew: Crew, kind: str) -> None:
    """Losses and factors agree within 1e-5 over gloo, and the sampled tokens are the same. When
    sharded, each process holds less.

    With three processes and two responses to a prompt, one process has nothing to compute in the
    second step and must still take part in every layer. With vLLM each process samples its part of
    the prompts with an engine of its own, a fake one if vLLM is not installed.
    """
    one, several = crew.found[kind]["one"], crew.found[kind]["several"]
    assert several["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert several["tokens"] == one["tokens"]
    for name, array in one["factors"].items():
        assert np.abs(np.subtract(several["factors"][name], array)).max() <= 1e-5
    if "sharded" in kind:
        assert several["held"] < 0.8 * one["held"]
    else:
        assert several["held"] == one["held"]
    # The followers close their engines after the leader has its results.
    until(lambda: not list(crew.folder.glob("**/adapters*")))


def test_processes_are_open_to_their_own_machine_alone(crew: Crew) -> None:
    """Their messages are pickled, so anyone who could join them could have them run anything."""
    processes = [psutil.Process(crew.leader.pid), *crew.followers]
    connections = [each for process in processes for each in process.net_connections("tcp")]
    listening = {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_a_leader_does_not_wait_for_a_dead_follower(crew: Crew) -> None:
    """It exits with an error that says what to do, so it can be restarted; the others exit too."""
    first, second = crew.followers
    first.kill()
    assert crew.leader.wait(20) == 70
    assert crew.leader.stderr is not None
    assert "Start it again to continue from the last step" in crew.leader.stderr.read()
    assert psutil.wait_procs([second], timeout=10)[1] == []


def daemon(state: Path) -> Forked:
    """A client of two processes, whose private problems exist already."""
    command = client_command(state, 3, more=["--processes", "2"])
    return Forked(command, state.with_suffix(".log"), env=os.environ | ONE_THREAD)


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")


def torchrun(state: Path) -> None:
    """Run the same client by torchrun until it ends."""
    command = [sys.executable, *TORCHRUN, *PUBSWAP, *client_command(state, 3)]
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=240)


@contextmanager
def started(folder: Path) -> Iterator[tuple[Coordinator, RunView, Path]]:
    """A coordinator, its run of one client, and the client's state folder."""
    folder.mkdir()
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api:
            run = create_run(coordinator, {"clients": 1, "rounds": 1, "local_steps": 8})
            state = enroll(coordinator, run, "alpha")
            start(coordinator, run)
            yield coordinator, run, state


def trained(folder: Path, ends: Sequence[tuple[int, signal.Signals]]) -> bytes:
    """The adapter of a client that these signals end once these steps are made."""
    with started(folder) as (coordinator, run, state):
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


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_a_client_of_two_processes_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    """By SIGTERM and by SIGKILL; it leaves no process behind, and ends with the same bits."""
    undisturbed = trained(tmp_path / "undisturbed", [])
    ends = [(2, signal.SIGTERM), (4, signal.SIGKILL)]
    assert trained(tmp_path / "ended", ends) == undisturbed


@pytest.mark.long
@pytest.mark.usefixtures("unmeasured")
def test_a_client_under_torchrun_trains_like_one_that_starts_its_own_processes(
    tmp_path: Path,
) -> None:
    """The followers are torchrun's, and the adapter has the same bits."""
    with started(tmp_path / "torchrun") as (coordinator, run, state):
        torchrun(state)
        adapter = coordinator.api.global_adapter(run.id, "final")
    assert adapter == trained(tmp_path / "own", [])
