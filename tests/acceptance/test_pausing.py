"""An operator pauses a run, and everything is killed meanwhile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from pubswap_client.consent.ledger import entries, ledger_folder
from pubswap_protocol import paths
from pubswap_protocol.messages import Event, RunView
from support.coordinator.processes import (
    Coordinator,
    create_run,
    enroll,
    federated_adapter,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.eventually import until
from support.forked import ForkedProcesses

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("unmeasured")]

SETTINGS = {"rounds": 1, "local_steps": 5, "method.period": 2}
SEEDS = {"alpha": 3, "beta": 4}
SENDS = {"responses", "update", "upload", "adapter"}
HELD = "The operator has paused the run: this member holds its"
WAITS = "Waiting for the operator to resume the run, paused since"


class Paused:
    """A federation that is paused, killed and resumed."""

    def __init__(self, coordinator: Coordinator, run: RunView, states: Mapping[str, Path]) -> None:
        self.coordinator, self.run, self.states = coordinator, run, states
        self.at: Any = None

    @property
    def events(self) -> list[Event]:
        """The run's log."""
        return self.coordinator.api.events(self.run.id).events

    def begin(self) -> None:
        """Start both daemons."""
        for name, state in self.states.items():
            start_client(self.coordinator, state, SEEDS[name])

    def pause_after(self, public_step: int) -> None:
        """Pause once an exchange is closed, while both daemons train on it."""
        closed = ("exchange closed", public_step)
        until(lambda: closed in ((e.kind, e.details.get("public_step")) for e in self.events))
        self.coordinator.api.move_run(self.run.id, paths.RUN_PAUSE)
        self.at = next(e.at for e in reversed(self.events) if e.kind == "paused")

    def wait_until_held(self, holds: int) -> None:
        """Wait until both report what they hold, and have said so in one line of their logs."""
        api = self.coordinator.api

        def all_hold() -> bool:
            progress = [member.progress for member in api.members(self.run.id).members]
            return all(each is not None and each.holds == holds for each in progress)

        until(all_hold)
        what = f"responses to public step {holds}" if holds else "update"
        said = str(api.run(self.run.id).activity)
        assert said.endswith(f" alpha holds its {what}, beta holds its {what}.")
        for name in self.states:
            lines = self.log(name).splitlines()
            assert [HELD in line for line in lines].count(True) == 1
            assert not any("Trying again" in line for line in lines)

    def log(self, name: str) -> str:
        """The log of a daemon's last life."""
        return (self.coordinator.folder / "logs" / f"{name}.log").read_text()

    def kill_all(self) -> None:
        """Kill daemons and coordinator by SIGKILL, and start them again."""
        running = self.coordinator.processes._running
        for name in (*self.states, "coordinator"):
            running[name].kill()
            running[name].wait()
            del running[name]
        port = httpx.URL(self.coordinator.api.url).port
        serve(self.coordinator.processes, self.coordinator.folder, port).api.__exit__()
        self.begin()
        until(lambda: all(WAITS in self.log(name) for name in self.states))

    def check_silence(self) -> None:
        """Nothing has been sent since the pause, by the coordinator's log and the ledgers."""
        assert not [e for e in self.events if e.at >= self.at and e.kind in SENDS]
        since = f"{self.at:%Y-%m-%dT%H:%M:%S}.{self.at.microsecond // 1000:03}Z"
        for state in self.states.values():
            found = [each for each in entries(ledger_folder(state)) if each.at > since]
            assert found, "at least heartbeats"
            assert not SENDS & {each.kind for each in found}

    def resume(self) -> None:
        """Resume the run."""
        self.coordinator.api.move_run(self.run.id, paths.RUN_RESUME)


@pytest.mark.parametrize("mode", ["synchronous", "pipelined"])
def test_nothing_is_sent_in_a_pause_and_kills_in_it_change_no_bit(
    tmp_path: Path, mode: str
) -> None:
    """Both members hold their responses, later their updates; the adapter is as undisturbed."""
    overrides = SETTINGS | {"method.mode": mode}
    _, expected = federated_adapter(tmp_path / "undisturbed", overrides)
    folder = tmp_path / "paused"
    folder.mkdir()
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api as api:
            run = create_run(coordinator, overrides)
            states = {name: enroll(coordinator, run, name) for name in SEEDS}
            paused = Paused(coordinator, run, states)
            paused.begin()
            start(coordinator, run)
            for public_step, holds in ((1, 2), (2, 0)):
                paused.pause_after(public_step)
                paused.wait_until_held(holds)
                paused.check_silence()
                paused.kill_all()
                paused.check_silence()
                paused.resume()
            view = wait_finished(coordinator, run)
            assert view.rounds[1].updates == 2
            assert [public_step.clients for public_step in view.rounds[1].public_steps] == [2, 2]
            assert not any(e.details.get("late") for e in paused.events)
            assert api.global_adapter(run.id, "final") == expected
