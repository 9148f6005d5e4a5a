"""An operator pauses and cancels a run in the middle of its members' work."""

import re
from pathlib import Path

import pytest

from pubswap_protocol import paths
from pubswap_protocol.errors import ServerFault
from support.coordinator.processes import create_run, enroll, serve, start, start_client
from support.eventually import until
from support.forked import ForkedProcesses

pytestmark = pytest.mark.full


def test_daemons_wait_through_a_pause_and_stop_within_a_step_of_a_cancel(tmp_path: Path) -> None:
    """Their logs say so; after the cancel, only the step under way of forty is still made."""
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            run = create_run(coordinator, {"local_steps": 40, "method": "fedavg"})
            states = {name: enroll(coordinator, run, name) for name in ("alpha", "beta")}
            start(coordinator, run)
            api.move_run(run.id, paths.RUN_PAUSE)
            for seed, state in enumerate(states.values()):
                start_client(coordinator, state, seed)
            logs = {name: tmp_path / "logs" / f"{name}.log" for name in states}

            def steps() -> dict[str, int]:
                found = {
                    name: re.findall(r" step=(\d+) steps=40", log.read_text())
                    for name, log in logs.items()
                }
                return {name: max(map(int, numbers), default=0) for name, numbers in found.items()}

            paused = "Waiting for the operator to resume the run, paused since 20"
            until(lambda: all(paused in log.read_text() for log in logs.values()))
            assert set(steps().values()) == {0}
            api.move_run(run.id, paths.RUN_RESUME)
            until(lambda: min(steps().values()) >= 2)
            api.move_run(run.id, paths.RUN_CANCEL)
            before = steps()
            until(lambda: all("The run is cancelled." in log.read_text() for log in logs.values()))
            # One step may have ended without being written yet, and one was under way.
            assert all(made <= before[name] + 2 for name, made in steps().items())
            until(lambda: _status(processes) == 3)


def _status(processes: ForkedProcesses) -> int | None:
    """The exit status of a daemon that has ended."""
    try:
        processes.check()
    except ServerFault as error:
        found = re.search(r"ended with status (\d+)", error.detail)
        return int(found[1]) if found else None
    return None
