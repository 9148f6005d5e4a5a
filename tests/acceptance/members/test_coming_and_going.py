"""Real daemons that join, leave and return in mid-run."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.state.lock import holder
from pubswap_protocol import paths
from support.coordinator.processes import (
    ONE_THREAD,
    client_command,
    create_run,
    enroll,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.eventually import until
from support.forked import Forked, ForkedProcesses, pubswap

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("unmeasured")]

SETTINGS = {
    "aggregation.quorum": 2,
    "aggregation.weights": "steps",
    "members.minimum": 1,
    "members.fewest_steps": 1,
    "rounds": 9,
}


@dataclass
class LivedTogether:
    """A run that is paused and resumed, so that members join and leave in a fixed order."""

    api: CoordinatorClient
    run: str

    def log(self, member: str, kind: str) -> list[Any]:
        """The run's events about a member."""
        events = self.api.events(self.run).events
        mine = [event.details for event in events if event.kind == kind]
        return [details for details in mine if details.get("member") == member]

    def pause(self, round_: int, member: str) -> int:
        """Pause in this round or a later one; returns it once a member handed the last one in."""
        until(lambda: self.api.whole_run(self.run).round >= round_)
        self.api.move_run(self.run, paths.RUN_PAUSE)
        here = self.api.whole_run(self.run).round
        # A member that had begun this round holds its update.
        until(lambda: any(update["round"] >= here - 1 for update in self.log(member, "update")))
        return here

    def resume(self) -> None:
        """Resume the run."""
        self.api.move_run(self.run, paths.RUN_RESUME)


def started(state: Path, logs: Path) -> Forked:
    """A daemon that can be stopped."""
    return Forked(client_command(state, 4), logs / "beta.log", env=os.environ | ONE_THREAD)


def test_daemons_come_and_go_and_the_run_goes_on(tmp_path: Path) -> None:
    """One begins alone, with one of two steps; another joins in mid-run, leaves and returns."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "client.toml").write_text("round_steps = 1\n")
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api as api:
            view = create_run(coordinator, SETTINGS)
            run, alpha = LivedTogether(api, view.id), enroll(coordinator, view, "alpha")
            start(coordinator, view)
            hasty = ["--config", str(folder / "client.toml")]
            start_client(coordinator, alpha, 3, more=hasty)

            run.pause(2, "alpha")
            beta = enroll(coordinator, view, "beta")
            daemon = started(beta, folder / "logs")
            until(lambda: holder(beta) is not None)
            busy = pubswap("client", "leave", "--state", str(beta))
            assert (busy.returncode, "Stop that one" in busy.stderr) == (1, True)
            run.resume()
            until(lambda: bool(run.log("beta", "update")))

            left_in = run.pause(1, "beta")
            daemon.terminate()
            daemon.wait()
            assert pubswap("client", "leave", "--state", str(beta)).returncode == 0
            run.resume()
            back_in = run.pause(left_in + 2, "alpha")
            daemon = started(beta, folder / "logs")
            until(lambda: bool(run.log("beta", "back")))
            run.resume()
            done = wait_finished(coordinator, view)
            assert daemon.wait() == 0
            over = pubswap("client", "leave", "--state", str(beta))
            assert (over.returncode, "there is nothing to leave" in over.stdout) == (0, True)
            steps = {update["round"]: update for update in run.log("alpha", "fewer steps")}
            away = run.log("beta", "away")
    assert [details["code"] for details in away] == ["left"]
    updates = [summary.updates for summary in done.rounds]
    assert updates[1] == 1
    assert updates[left_in + 1] == 1
    assert updates[back_in + 1 :] == [2] * (len(updates) - back_in - 1)
    assert steps.keys() == set(range(1, len(updates)))
