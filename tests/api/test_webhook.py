"""The operator's webhook, with real receivers: working, dead, or never answering."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs

from pubswap_client.demo.processes import free_port
from pubswap_protocol import paths
from pubswap_protocol.messages import FullEvaluation, RunState
from pubswap_server.conductor import stalls
from pubswap_server.monitoring import webhook
from pubswap_server.settings import ServerSettings
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.eventually import until

SECRET = "secret-of-the-receiver"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the pauses between attempts fractions of a second."""
    monkeypatch.setattr(webhook, "PAUSE_SECONDS", (0.05, 0.05))


@dataclass
class Receiver:
    """A real HTTP server; `answer` returns each response's status, or blocks."""

    answer: Callable[[int], int] = lambda number: 204
    bodies: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> "Receiver":
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == f"/{SECRET}"
                if not (body := self.rfile.read(int(self.headers["Content-Length"]))):
                    return  # an attempt abandoned before it was sent
                receiver.bodies.append(json.loads(body))
                with contextlib.suppress(OSError):
                    self.send_response(receiver.answer(len(receiver.bodies)))
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextlib.contextmanager
def notifying(folder: Path, port: int) -> Iterator[Server]:
    """A coordinator whose webhook is on this port."""
    url = SecretStr(f"http://127.0.0.1:{port}/{SECRET}")
    settings = settings_for(folder).model_copy(update={"notify_url": url})
    with serving(settings) as server, server.closing:
        yield server


def finish(fed: Federation) -> None:
    """Submit the last update of the only round."""
    fed.submit("a", 1, fed.adapter(1))
    view = fed.wait_for(1)
    assert view.state is RunState.FINISHED


def test_a_run_that_stalls_and_a_run_that_is_finished_are_told_of(tmp_path: Path) -> None:
    """Once each, with a message and the run; a failed delivery is retried."""
    receiver = Receiver(lambda number: 500 if number == 1 else 204)
    with receiver, notifying(tmp_path, receiver.port) as server:
        fed = begun(server, method="fedavg", clients=2, rounds=1, aggregation={"quorum": 2})
        fed.operator.revoke(fed.run.id, "b")
        until(lambda: len(receiver.bodies) == 2)
        fed.enroll("c")
        until(lambda: fed.view().waiting_for is None)
        fed.submit("c", 1, fed.adapter(2))
        finish(fed)
        until(lambda: len(receiver.bodies) == 3)
    first, again, finished = receiver.bodies
    assert first == again
    assert first | {"words": ""} == {
        "run": fed.run.id,
        "name": fed.run.name,
        "kind": "waiting",
        "words": "",
    }
    assert "1 more clients are missing" in first["words"]
    assert finished["kind"] == "finished"
    assert "round 1" in finished["words"]


def test_an_update_that_stands_out_is_told_of(tmp_path: Path) -> None:
    """With the member, and the commands that undo what it did to the model."""
    with Receiver() as receiver, notifying(tmp_path, receiver.port) as server:
        fed = begun(server, method="fedavg", clients=3, rounds=2)
        made = {name: fed.adapter(number) for number, name in enumerate("abc")}
        made["b"] = {name: 100 * array for name, array in made["b"].items()}
        for name, adapter in made.items():
            fed.submit(name, 1, adapter)
        fed.wait_for(1)
        until(lambda: receiver.bodies)
    (told,) = receiver.bodies
    assert told["kind"] == "warning"
    assert told["words"].startswith("The update of b to round 1 is ")
    assert f"pubswap member suspend {fed.run.name} b" in told["words"]
    assert f"pubswap run rollback {fed.run.name} --to 0" in told["words"]


def test_suspicious_answers_are_told_of(tmp_path: Path) -> None:
    """With the command that shows them, and once, however often the evaluation is sent."""
    with Receiver() as receiver, notifying(tmp_path, receiver.port) as server:
        fed = begun(server)
        figures = {"pass_at_1": 0.5, "by_topic": {}, "problems": 5, "seconds": 1.0}
        body = FullEvaluation(**figures, warning="20 of 20 right answers are the same text")
        for _ in range(2):
            fed.members["judge"].submit_evaluation(fed.run.id, 0, body)
        until(lambda: receiver.bodies)
    (told,) = receiver.bodies
    assert (told["run"], told["kind"]) == (fed.run.id, "warning")
    assert told["words"] == (
        "Round 0: 20 of 20 right answers are the same text. Read them: "
        f"`pubswap run show {fed.run.name} --responses`"
    )


def test_a_client_that_a_round_waits_for_in_vain_is_told_of(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an hour of silence, if there is no quorum without it, and until it submits."""
    monkeypatch.setattr(stalls, "SILENT_SECONDS", 0.5)
    fed = begun(server, method="fedavg", clients=2, rounds=1, aggregation={"quorum": 2})
    fed.submit("a", 1, fed.adapter(1))
    until(lambda: "waits for b, not heard of" in (fed.view().waiting_for or ""))
    fed.submit("b", 1, fed.adapter(2))
    assert fed.wait_for(1).waiting_for is None


def test_a_client_that_no_quorum_needs_is_not_told_of(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round closes without it at its deadline."""
    monkeypatch.setattr(stalls, "SILENT_SECONDS", 0.2)
    rules = {"quorum": 1, "deadline_seconds": 1.5}
    fed = begun(server, method="fedavg", clients=2, rounds=1, aggregation=rules)
    fed.submit("a", 1, fed.adapter(1))
    time.sleep(0.6)
    assert fed.view().waiting_for is None
    assert fed.wait_for(1).state is RunState.FINISHED


def test_a_client_that_a_paused_run_does_not_wait_for_is_not_told_of(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon may be stopped meanwhile; once the run is resumed, the round waits for it."""
    monkeypatch.setattr(stalls, "SILENT_SECONDS", 0.3)
    fed = begun(server, method="fedavg", clients=2, rounds=1, aggregation={"quorum": 2})
    fed.submit("a", 1, fed.adapter(1))
    fed.operator.move_run(fed.run.id, paths.RUN_PAUSE)
    time.sleep(0.6)
    assert fed.view().waiting_for is None
    fed.operator.move_run(fed.run.id, paths.RUN_RESUME)
    until(lambda: "waits for b, not heard of" in (fed.view().waiting_for or ""))


@pytest.mark.parametrize("kind", ["dead", "silent"])
def test_a_receiver_that_does_not_answer_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Runs go on meanwhile; giving up is logged without the address."""
    monkeypatch.setattr(webhook, "TRY_SECONDS", 0.5)
    released = threading.Event()

    def answer(number: int) -> int:
        released.wait(60)
        return 204

    with capture_logs() as lines, Receiver(answer) as receiver:
        port = receiver.port if kind == "silent" else free_port()
        with notifying(tmp_path, port) as server:
            for _ in range(2):
                fed = begun(server, method="fedavg", clients=1, rounds=1)
                finish(fed)
            until(lambda: [line["event"] for line in lines].count("notice not delivered") == 2)
        released.set()
        # On a busy machine, an attempt may be abandoned before it is sent, or be read only later.
        until(lambda: bool(receiver.bodies) == (kind == "silent"))
    assert len(receiver.bodies) <= 6
    assert SECRET not in str(lines)


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "other://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_ends_no_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """Only the notice is lost, although httpx then raises errors such as ImportError."""
    monkeypatch.setenv("ALL_PROXY", proxy)
    with capture_logs() as lines, notifying(tmp_path, free_port()) as server:
        finish(begun(server, method="fedavg", clients=1, rounds=1))
        until(lambda: "notice not delivered" in [line["event"] for line in lines])
        assert not server.app.state.services.background.done()


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "ftp://127.0.0.1", "https://", "http://127.0.0.1.example.org"]
)
def test_an_address_that_others_could_read_is_refused(url: str) -> None:
    """It must be https or local."""
    with pytest.raises(ValidationError, match="https address") as refused:
        ServerSettings(notify_url=SecretStr(url))
    assert SECRET not in str(refused.value)
    assert ServerSettings(notify_url=SecretStr("https://hooks.example.org/x")).notify_url
