"""`pubswap simulate --sweep --backend ray`, with a real Ray."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pubswap_client.demo.processes import free_port
from pubswap_simulation.results import read_results
from support.client.simulations import command, simulated, write_recipe
from support.eventually import until
from support.forked import Forked

SHORT = ("--set", "rounds=1", "--set", "local_steps=6", "--set", "method=fedavg")
SWEEP = (*SHORT, "--sweep", "--keep-adapters")
SINGLE = '[[sweep.grid]]\nmembers = ["alone"]\n'


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), SINGLE)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, recipe: Path) -> dict[str, Any]:
    """The sweep's results on this machine."""
    store = tmp_path_factory.mktemp("here")
    simulated(recipe, store, *SWEEP)
    return found(store)


def found(store: Path) -> dict[str, Any]:
    """Adapters and results by the runs' keys, without times."""
    adapters = "runs/*/adapter-final/adapter_model.safetensors"
    there: dict[str, Any] = {
        path.parents[1].name: [path.read_bytes()] for path in store.glob(adapters)
    }
    assert len(there) == 2
    for path, result in zip(
        sorted(store.glob("runs/*/result.json")), read_results(store), strict=True
    ):
        rounds = [(each.adapter, each.drift) for each in result.run.rounds]
        scores = [each.model_copy(update={"seconds": 0.0}) for each in result.evaluations]
        there[path.parent.name] += [result.client, result.rewards, rounds, scores]
    return there


def half_done(store: Path) -> bool:
    """Whether a step of a run has been made."""
    assert not list(store.glob("runs/*/result.json"))
    rewards = store.glob("runs/*/work/members/*/rewards")
    return any(path.stat().st_size > 0 for path in rewards)


class Ray:
    """A Ray cluster whose nodes are processes of this machine."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        port = free_port()
        self._nodes: list[subprocess.Popen[bytes]] = []
        self.address = f"127.0.0.1:{port}"
        more = (f"--temp-dir={folder}", "--include-dashboard=false", "--num-cpus=0")
        self._start("--head", f"--port={port}", *more)

    def join(self) -> subprocess.Popen[bytes]:
        """Add a node for one run at a time."""
        return self._start(f"--address={self.address}", "--num-cpus=1")

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        program = str(Path(sys.executable).with_name("ray"))
        line = [program, "start", "--block", "--disable-usage-stats", *options]
        with (Path(self._folder) / f"{len(self._nodes)}.log").open("wb") as log:
            node = subprocess.Popen(
                [*line, "--object-store-memory=80000000"],
                # Ray's workers are nice by default: beside other tests they would hardly run.
                env=os.environ | {"RAY_worker_niceness": "0"},
                stdout=log,
                stderr=log,
            )
        self._nodes.append(node)
        return node

    def close(self) -> None:
        for node in self._nodes:
            kill(node)


def kill(node: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a node at once, as a power cut would."""
    if node.poll() is None:
        below = psutil.Process(node.pid).children(recursive=True)
        for process in [*below, psutil.Process(node.pid)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()


@pytest.fixture
def ray() -> Iterator[Ray]:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with tempfile.TemporaryDirectory(
        prefix="ray", dir="/tmp"
    ) as folder:  # names of sockets must be short
        cluster = Ray(folder)
        yield cluster
        cluster.close()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_whose_ray_node_dies_is_done_on_another(
    tmp_path: Path, recipe: Path, here: dict[str, Any], ray: Ray
) -> None:
    """The sweep continues by itself, and its results equal this machine's bit for bit."""
    store, log = tmp_path / "store", tmp_path / "log"
    node = ray.join()
    env = os.environ | {"RAY_ADDRESS": ray.address}
    process = Forked(command(recipe, store, *SWEEP, "--backend", "ray"), log, env=env)
    until(lambda: half_done(store) or process.poll() is not None, 300)
    kill(node)
    assert process.poll() is None, log.read_text()
    assert half_done(store)
    ray.join()
    assert process.wait() == 0, log.read_text()
    assert found(store) == here
    assert "client-2 seed=7: done" in log.read_text()


def test_what_is_missing_on_a_cluster_is_said(tmp_path: Path, recipe: Path) -> None:
    """Without a cluster or --sweep: one line, status 1, and nothing is started."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    store = tmp_path / "store"
    for options, said in (
        (("--backend", "ray", "--sweep"), "No Ray cluster answers"),
        (("--backend", "ray"), "--backend is for --sweep"),
        (("--backend", "ray", "--sweep", "--devices", "cuda:0"), "without --devices"),
        (("--sweep", "--resource", "num_gpus=1"), "--resource is for --backend"),
    ):
        _, printed = simulated(recipe, store, *SHORT, *options, status=1)
        assert said in printed
        assert "Traceback" not in printed
    assert not list(store.glob("runs/*/work"))
