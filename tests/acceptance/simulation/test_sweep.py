"""`pubswap simulate --sweep`: runs in processes of their own, some of which die."""

import signal
from pathlib import Path

import psutil
import pytest

from pubswap_simulation.results import read_results
from support.client.simulations import command, simulated, write_recipe
from support.eventually import until
from support.forked import Forked

SHORT = ("--set", "rounds=1", "--set", "local_steps=3", "--set", "method=fedavg", "--sweep")
SINGLE = '[[sweep.grid]]\nmembers = ["alone"]\n'


@pytest.mark.long
@pytest.mark.full
def test_a_killed_run_costs_no_other_and_is_tried_again(tmp_path: Path) -> None:
    """It is listed with its log; the same command then runs it, but not those that are done."""
    recipe, store = write_recipe(tmp_path / "recipe", SINGLE), tmp_path / "store"
    line = command(recipe, store, *SHORT)
    process = Forked(line, log := tmp_path / "log")
    until(lambda: workers(process, store))
    [worker] = workers(process, store)
    worker.kill()
    assert process.wait() == 1
    printed = log.read_text()
    [kept] = read_results(store)
    assert (kept.members, kept.client) == ("alone", "client-2")
    assert "failed: its process ended with status -9" in printed
    [own_log] = (path for path in store.glob("runs/*/run.log") if "client-1" in str(path))
    assert str(own_log) in printed

    results, printed = simulated(recipe, store, *SHORT)
    assert [result.client for result in results] == ["client-1", "client-2"]
    assert [sorted(result.rewards) for result in results] == [["client-1"], ["client-2"]]
    assert "client-2 seed=7: already done" in printed


@pytest.mark.full
def test_ctrl_c_ends_a_sweep_and_all_of_its_processes(tmp_path: Path) -> None:
    """Nothing goes on in the background, and the user is told how to continue."""
    recipe, store = write_recipe(tmp_path / "recipe", SINGLE), tmp_path / "store"
    line = command(recipe, store, *SHORT, "--jobs", "2")
    process = Forked(line, log := tmp_path / "log")
    until(lambda: workers(process, store))
    found = workers(process, store)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert "continue where it stopped" in log.read_text()
    until(lambda: not any(worker.is_running() for worker in found))
    assert list(store.glob("runs/*/work"))


def test_what_is_given_wrongly_is_said_at_once(tmp_path: Path) -> None:
    """In one line, with status 1, and nothing is started."""
    recipe, store = write_recipe(tmp_path / "recipe"), tmp_path / "store"
    for options, said in (
        (("--vary", "method.period=2,3"), "--vary and --seeds are for --sweep"),
        (("--sweep", "--seeds", "one"), "give them as 0-4"),
        (("--set", "method.period=5"), "method.period"),
        (("--set", "clients=3"), "data.private: 2 files"),
        (("--devices", "gpu0"), "--devices gpu0"),
        (("--engine", "guess"), "engine"),
    ):
        _, printed = simulated(recipe, store, *options, status=1)
        assert said in printed
        assert "Traceback" not in printed
    assert not list(store.glob("runs/*"))


def workers(process: Forked, store: Path) -> list[psutil.Process]:
    """The simulating processes, once one has started."""
    if not list(store.glob("runs/*/work/founded")):
        assert process.poll() is None
        return []
    return psutil.Process(process.pid).children()
