"""A coordinator that goes away in the middle of a round of private steps."""

import re
import signal
from pathlib import Path

import pytest

from pubswap_protocol import paths
from support.coordinator.processes import create_run, enroll, serve, start, start_client
from support.eventually import until
from support.forked import ForkedProcesses

pytestmark = pytest.mark.full

STEPS = 30


def test_private_steps_go_on_while_the_coordinator_is_away(tmp_path: Path) -> None:
    """The stopped coordinator accepts connections but answers none. Steps go on at their usual
    pace, and are reported afterwards.

    There are ten, in less time than a client waits for any other answer.
    """
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            run = create_run(coordinator, {"local_steps": STEPS, "method": "fedavg", "clients": 1})
            state = enroll(coordinator, run, "alpha")
            start(coordinator, run)
            start_client(coordinator, state, 0)
            log = tmp_path / "logs" / "alpha.log"

            def steps() -> int:
                found = re.findall(rf" step=(\d+) steps={STEPS}", log.read_text())
                return max(map(int, found), default=0)

            def shown() -> int:
                progress = api.members(run.id).members[0].progress
                return progress.step if progress else 0

            until(lambda: steps() >= 3, 120)
            served = processes._running["coordinator"]
            served.send_signal(signal.SIGSTOP)
            try:
                before = steps()
                until(lambda: steps() >= before + 10, 40)
            finally:
                served.send_signal(signal.SIGCONT)
            until(lambda: shown() > before)
            until(lambda: steps() == STEPS, 120)
            api.move_run(run.id, paths.RUN_CANCEL)
