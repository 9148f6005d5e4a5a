"""`pubswap serve` with several workers, and separate processes on one database."""

import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from pubswap_client.demo.processes import free_port
from pubswap_protocol import paths
from pubswap_protocol.messages import RunState, TaskKind
from support.coordinator.coordinator import OPERATOR_TOKEN, begun, create
from support.coordinator.places import on_sqlite
from support.coordinator.postgres import Postgres
from support.coordinator.serving import Serving, children, serve
from support.eventually import until


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """A stack for what the test opens."""
    with ExitStack() as opened:
        yield opened


@pytest.mark.full
def test_workers_share_a_port_and_a_run_and_are_replaced(
    database_url: str, tmp_path: Path, stack: ExitStack
) -> None:
    """A run finishes whichever worker takes a request.

    All workers are killed mid-round, and the run goes on where it was. When they are stopped, a
    waiting client is answered.
    """
    service = stack.enter_context(serve(tmp_path, database_url, ["--workers", "2"]))
    before = service.workers()
    assert len(before) == 2
    fed = begun(service.server, method="fedavg")
    for round_ in (1, 2):
        for name in ("a", "b"):
            task = fed.server.client(fed.tokens[name]).task(fed.run.id, 5)
            assert (task.kind, task.round) == (TaskKind.TRAIN, round_)
            assert fed.submit(name, round_, fed.adapter(round_)) == "accepted"
            if (name, round_) == ("a", 2):
                for worker in before:
                    os.kill(worker, signal.SIGKILL)
                until(lambda: len(set(service.workers()) - set(before)) == 2)
                service.wait_until_ready()
        fed.wait_for(round_)
    assert fed.view().state is RunState.FINISHED
    stopped_while_one_waits(service)


@pytest.mark.full
@pytest.mark.parametrize("workers", ["1", "2"])
def test_guesses_lock_no_member_of_their_address_out(
    database_url: str, tmp_path: Path, stack: ExitStack, workers: str
) -> None:
    """Neither one that the process has not seen yet, after a restart or on another worker.

    Nor one that enrols meanwhile, nor the operator's sign-in. The guesses themselves are refused.
    """
    port, options = free_port(), ["--workers", workers]
    with Serving(tmp_path, database_url, port, options) as before:
        before.wait_until_ready()
        fed = begun(before.server)
    service = stack.enter_context(Serving(tmp_path, database_url, port, options))
    service.wait_until_ready()
    answers, ended = Counter[int](), threading.Event()

    def guess() -> None:
        with service.server.http(None) as http:
            while not ended.is_set():
                bearer = {"Authorization": f"Bearer {secrets.token_hex(20)}"}
                reply = http.get(paths.RUNS, headers={**bearer, "Connection": "close"})
                answers[reply.status_code] += 1

    def refused() -> bool:
        return answers[429] > 20 * int(workers)

    with ThreadPoolExecutor(8) as pool:
        guesses = [pool.submit(guess) for _ in range(8)]
        try:
            until(refused)
            for turn in range(5):  # each on a connection of its own, so on either worker
                for token in (*fed.tokens.values(), OPERATOR_TOKEN):
                    with service.server.http(token) as http:
                        assert http.get(paths.RUN.format(run=fed.run.id)).status_code == 200
                with service.server.http() as http:
                    path, body = paths.RUN_INVITES.format(run=fed.run.id), {"name": f"new-{turn}"}
                    invite = http.post(path, json=body).json()["invite"]
                with service.server.http(None) as http:
                    reply = http.post(paths.ENROLL, json={"invite": invite})
                    assert reply.status_code == 201
                with service.server.http(reply.json()["token"]) as http:
                    assert http.get(paths.RUN.format(run=fed.run.id)).status_code == 200
                with service.server.http(None) as http:
                    form = {"token": OPERATOR_TOKEN}
                    assert http.post("/sign-in", data=form).status_code == 303
        finally:
            ended.set()
        for each in guesses:
            each.result()
    assert set(answers) == {401, 429}


@pytest.mark.full
@on_sqlite
def test_workers_end_with_their_parent(database_url: str, tmp_path: Path, stack: ExitStack) -> None:
    """A killed parent leaves no serving process behind."""
    service = stack.enter_context(serve(tmp_path, database_url, ["--workers", "2"]))
    family = children(service.process.pid)
    service.process.kill()
    service.process.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


@on_sqlite
def test_a_stopping_coordinator_answers_whom_it_keeps_waiting(
    database_url: str, tmp_path: Path, stack: ExitStack
) -> None:
    """On SIGTERM, long polls are answered with "wait", and no process is left."""
    stopped_while_one_waits(stack.enter_context(serve(tmp_path, database_url)))


def stopped_while_one_waits(service: Serving) -> None:
    """Stop the service and its workers while a client waits."""
    fed = create(service.server, clients=1)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    fed.enroll("a")
    family = [service.process.pid, *children(service.process.pid)]
    found: list[TaskKind] = []
    waiting = threading.Thread(
        target=lambda: found.append(fed.members["a"].task(fed.run.id, 25).kind)
    )
    waiting.start()
    until(lambda: service.server.long_polls() == 1)
    began = time.monotonic()
    service.process.terminate()
    waiting.join(20)
    assert found == [TaskKind.WAIT]
    service.process.wait(25)
    assert time.monotonic() - began < 20  # less than the 25 s that it asked to wait
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


def test_replicas_that_start_together_agree_on_one_operator_token(
    postgres_server: Postgres, tmp_path: Path, stack: ExitStack
) -> None:
    """Separate processes on one PostgreSQL and one folder create one schema and one token."""
    url = postgres_server.new_database()
    services = [Serving(tmp_path, url, free_port(), token=None) for _ in range(2)]
    for service in services:
        stack.enter_context(service)
    for service in services:
        service.wait_until_ready()
    token = (tmp_path / "data" / "operator-token").read_text().strip()
    assert token != OPERATOR_TOKEN
    for service in services:
        assert service.server.client(token).runs() == []
