"""Heartbeats are sent in the background, so that an outage of the coordinator does not delay
training.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pubswap_client.coordinator.client import HEARTBEAT_SECONDS, CoordinatorClient
from pubswap_client.coordinator.route import LONG_POLL_SECONDS
from pubswap_client.daemon.heartbeats import GRACE_SECONDS, REPEAT_SECONDS, Heartbeats
from pubswap_client.daemon.held_out import HeldOut
from pubswap_client.daemon.reporters import StepReport
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.errors import RefusedByPolicy, RunCancelled, Unavailable, Unreachable
from pubswap_protocol.messages import Progress
from pubswap_protocol.problems import Problem
from pubswap_server.runs.progress.heartbeats import ALIVE_SECONDS, FLUSH_SECONDS
from pubswap_server.runs.quorum import HEARD_SECONDS
from support.client.one_client import World
from support.eventually import until


def progress(step: int) -> Progress:
    """The progress of a round after `step` steps."""
    return Progress(round=1, step=step, steps=100)


def report(step: int, public: bool = False) -> StepReport:
    """The report of a step of the same round."""
    metrics = StepMetrics(0.1, 0.0, 0.0, 1.0, 0.0, 7.0, 58, 1.0, 0.3, memory_bytes=10**9)
    return StepReport(round=1, rounds=2, step=step, steps=100, public=public, completed=[metrics])


@pytest.fixture(params=["refused", "silent"])
def gone(request: pytest.FixtureRequest) -> Iterator[str]:
    """A coordinator whose port is closed, or that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if request.param == "silent":
            listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_an_outage_delays_training_by_one_grace_period_at_most(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over fifty steps, with a client whose other calls retry forever."""
    monkeypatch.setattr("pubswap_client.coordinator.client.HEARTBEAT_SECONDS", 0.5)
    with CoordinatorClient(gone) as api:
        with pytest.raises(Unreachable):
            api.heartbeat("r", progress(0))
        started = time.monotonic()
        with Heartbeats(partial(api.heartbeat, "r"), progress(0)) as heartbeats:
            for step in range(50):
                heartbeats.step(report(step))
        assert time.monotonic() - started < 40 * GRACE_SECONDS  # one per step would be 50


def test_the_newest_progress_is_sent_once_the_coordinator_answers() -> None:
    """Older progress is dropped; afterwards every step is sent again."""
    sent: list[int] = []
    entered, answers = threading.Event(), threading.Event()

    def send(body: Progress) -> None:
        sent.append(body.step)
        entered.set()
        assert answers.wait(20)
        if body.step == 1:
            raise Unavailable

    with Heartbeats(send, progress(0)) as heartbeats:
        heartbeats.step(report(1))
        assert entered.wait(20)
        for step in range(2, 6):
            heartbeats.step(report(step))
        answers.set()
        until(lambda: sent == [1, 5])
        for step in range(6, 9):
            heartbeats.step(report(step))
            until(lambda step=step: sent[-1] == step)
    assert sent == [1, 5, 6, 7, 8]


def test_progress_is_repeated_during_a_long_step_and_says_what_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the beginning on; what is held is sent at once, and again until it is not any more."""
    monkeypatch.setattr("pubswap_client.daemon.heartbeats.REPEAT_SECONDS", 0.02)
    sent: list[tuple[int, int | None]] = []

    def came(step: int, holds: int | None, times: int = 3) -> None:
        until(lambda: sent[-times:] == [(step, holds)] * times)

    with Heartbeats(lambda body: sent.append((body.step, body.holds)), progress(2)) as heartbeats:
        came(2, None)
        heartbeats.step(report(3))
        came(3, None)
        heartbeats.holds(6)
        came(3, 6)
        heartbeats.holds(None)
        came(3, None)
    until(lambda: not any(each.name == "heartbeats" for each in threading.enumerate()))


def test_a_member_is_heard_from_often_enough_to_count(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it fetches and measures an adapter, too; the coordinator writes down when, later."""
    rarest = REPEAT_SECONDS + HEARTBEAT_SECONDS + ALIVE_SECONDS + FLUSH_SECONDS
    assert max(rarest, LONG_POLL_SECONDS + ALIVE_SECONDS + FLUSH_SECONDS) < HEARD_SECONDS
    monkeypatch.setattr("pubswap_client.daemon.heartbeats.REPEAT_SECONDS", 0.02)
    one, heard = world(method="fedavg"), list[int]()
    one.held_out = [Problem(id="held", prompt="1 + 1 =", answer="2")]
    monkeypatch.setattr(one.coordinator, "heartbeat", lambda run, body: heard.append(body.round))

    def measure(of: HeldOut, *_: object) -> float:
        before = len(heard)
        until(lambda: len(heard) > before + 1)
        return 0.0

    monkeypatch.setattr(HeldOut, "measure", measure)
    one.live()
    assert {*heard} == {1, 2}


def test_what_a_policy_refused_during_a_wait_ends_nothing_once_it_allows_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hours may end and begin again while a member holds something, or waits."""
    monkeypatch.setattr("pubswap_client.daemon.heartbeats.REPEAT_SECONDS", 0.02)
    refused, sent = threading.Event(), threading.Event()

    def send(body: Progress) -> None:
        if not refused.is_set():
            refused.set()
            raise RefusedByPolicy
        sent.set()

    with Heartbeats(send, progress(2)) as heartbeats:
        assert sent.wait(20)
        until(lambda: heartbeats._refusal is None)
        heartbeats.step(report(3))


def test_what_ends_a_run_ends_the_round_at_the_next_step() -> None:
    """If the coordinator answers at once, it is the very next one; a temporary failure ends
    nothing.
    """
    answers = [Unavailable(), None, RunCancelled()]

    def send(body: Progress) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    with Heartbeats(send, progress(0)) as heartbeats:
        for step in (1, 2):
            heartbeats.step(report(step))
            until(lambda left=3 - step: len(answers) == left)
        with pytest.raises(RunCancelled):
            for step in (3, 4):
                heartbeats.step(report(step))


@pytest.mark.parametrize("private", [False, True])
def test_a_run_with_privacy_sends_no_figure_that_private_steps_have_shaped(private: bool) -> None:
    """None of a private step, and no memory of a public one, because a process keeps memory."""
    sent: list[Progress] = []
    with Heartbeats(sent.append, progress(0), private=private) as heartbeats:
        for step, public in ((1, False), (2, True)):
            heartbeats.step(report(step, public))
            until(lambda step=step: bool(sent) and sent[-1].step == step)
    told = [set(each.model_dump(exclude_none=True)) for each in sent]
    numbers = {"round", "step", "steps"}
    of_a_step = {*numbers, "reward", "loss", "kl", "response_tokens", "tokens_per_second"}
    whole = {*of_a_step, "memory_bytes"}
    assert told == ([numbers, of_a_step] if private else [whole, whole])
