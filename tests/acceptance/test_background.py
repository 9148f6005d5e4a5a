"""A background task that dies ends the process, so that its supervisor starts another."""

import sys
from pathlib import Path

import pytest

from pubswap_client.demo.processes import free_port
from pubswap_protocol.messages import RunState
from support.chaos import dying
from support.coordinator.coordinator import begun
from support.coordinator.serving import Serving
from support.eventually import until


def serving(folder: Path, options: tuple[str, ...] = ()) -> Serving:
    """A coordinator that dies of an injected fault once `folder / "now"` exists."""
    env = {"PYTHONPATH": ":".join(filter(None, sys.path)), dying.TRIGGER: str(folder / "now")}
    url = f"sqlite:///{folder / 'data' / 'pubswap.sqlite'}"
    program = [sys.executable, "-m", "support.chaos.dying"]
    return Serving(folder, url, free_port(), options, env, program=program)


def test_a_dead_conductor_ends_the_process(tmp_path: Path) -> None:
    """With exit status 1 and one line that says why; the next process continues the run."""
    service = serving(tmp_path)
    with service:
        service.wait_until_ready()
        fed = begun(service.server, method="fedavg", rounds=1)
        assert fed.submit("a", 1, fed.adapter(1)) == "accepted"
        (tmp_path / "now").touch()
        assert service.process.wait(20) == 1
        log = service.log.read_text()
        (line,) = [line for line in log.splitlines() if "a background task died" in line]
        assert "conductor" in line
        assert "malformed" in line
        assert "Traceback" not in log
        service.start()
        service.wait_until_ready()
        assert fed.submit("b", 1, fed.adapter(2)) == "accepted"
        assert fed.wait_for(1).state is RunState.FINISHED


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.full
def test_a_worker_with_a_dead_conductor_is_replaced(tmp_path: Path) -> None:
    """The supervisor of several workers starts another in its place."""
    with serving(tmp_path, ("--workers", "2")) as service:
        service.wait_until_ready()
        until(lambda: len(service.workers()) == 2)
        before = set(service.workers())
        (tmp_path / "now").touch()
        until(lambda: len(service.workers()) == 2 and len(set(service.workers()) & before) == 1)
        until(lambda: "died" in service.log.read_text())
        assert "Traceback" not in service.log.read_text()
