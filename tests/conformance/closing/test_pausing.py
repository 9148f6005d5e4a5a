"""A paused run: members hold what they would send, and nobody's work becomes late."""

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from pubswap_protocol import paths
from pubswap_protocol.errors import RoundClosed, RunCancelled, RunPaused
from pubswap_protocol.messages import (
    Evaluation,
    OpenUpload,
    Progress,
    Rollback,
    RunState,
    SubmitUpdate,
    TaskKind,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import encode_adapter
from support.coordinator.coordinator import Federation, Server, begun
from support.eventually import until

SCORE = Evaluation(pass_at_1=0.5, by_topic={"say": 0.5}, problems=5, seconds=1.0)
MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def pause(fed: Federation) -> None:
    """Pause the run as its operator."""
    fed.operator.move_run(fed.run.id, paths.RUN_PAUSE)


def resume(fed: Federation) -> None:
    """Resume the run as its operator."""
    fed.operator.move_run(fed.run.id, paths.RUN_RESUME)


def kinds(fed: Federation) -> list[str]:
    """The kinds of all events of the run's log."""
    return [event.kind for event in fed.operator.events(fed.run.id).events]


def test_a_paused_run_gives_out_no_work_until_it_is_resumed(server: Server) -> None:
    """A member's task says that the run is paused, and so does its question before it sends."""
    fed = begun(server, method="fedavg", rounds=1)
    member = fed.members["a"]
    assert not member.paused(fed.run.id)
    pause(fed)
    task = member.task(fed.run.id, 0)
    assert (task.kind, task.paused, member.paused(fed.run.id)) == (TaskKind.WAIT, True, True)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(member.paused, fed.run.id, 30)
        until(lambda: server.long_polls() == 1)
        resume(fed)
        assert not asked.result(20)
    task = member.task(fed.run.id, 0)
    assert (task.kind, task.paused) == (TaskKind.TRAIN, False)


def test_a_paused_run_takes_neither_responses_nor_updates(server: Server) -> None:
    """They are refused, kept nowhere, and taken in time after the resume.

    What was sent before gets its receipt again, and an upload that has begun may end.
    """
    fed = begun(server, rounds=1)
    run, a, b = fed.run.id, fed.members["a"], fed.members["b"]
    bodies = {name: fed.responses(name, 1, 1, [1, 1]) for name in "ab"}
    data = {name: encode_adapter(fed.run.model.layout, fed.adapter(ord(name))) for name in "ab"}
    a.submit_responses(run, 1, 1, bodies["a"])
    stored = a.put_blob(run, data["a"])
    update = SubmitUpdate(adapter=stored, metrics=UpdateMetrics(examples=1, steps=2))
    with server.http(fed.tokens["b"]) as http:
        begins = OpenUpload(digest=stored, size=len(data["a"])).model_dump()
        http.post(paths.UPLOADS.format(run=run), json=begins)
    pause(fed)
    before = kinds(fed)
    for send in (
        lambda: b.submit_responses(run, 1, 1, bodies["b"]),
        lambda: b.put_blob(run, data["b"]),
        lambda: a.submit_update(run, 1, update),
    ):
        with pytest.raises(RunPaused, match="hold this until it is resumed"):
            send()
    assert a.submit_responses(run, 1, 1, bodies["a"]).status == "accepted"
    assert a.put_blob(run, data["a"]) == b.put_blob(run, data["a"]) == stored
    assert kinds(fed) == before
    resume(fed)
    assert b.submit_responses(run, 1, 1, bodies["b"]).status == "accepted"
    assert a.exchanged(run, 1, 1)
    assert a.submit_update(run, 1, update).status == "accepted"
    assert fed.submit("b", 1, fed.adapter(2)) == "accepted"
    assert fed.wait_for(1).state is RunState.FINISHED


def test_nothing_closes_in_a_pause_even_if_all_are_in(server: Server) -> None:
    """Neither a round nor an exchange; both do after it."""
    fed = begun(server, rounds=1, clients=3)
    bodies = {name: fed.responses(name, 1, 1, [1, 1]) for name in "abc"}
    for name in "ab":
        fed.members[name].submit_responses(fed.run.id, 1, 1, bodies[name])
        fed.submit(name, 1, fed.adapter(ord(name)))
    pause(fed)
    fed.operator.revoke(fed.run.id, "c")  # now all are in
    time.sleep(0.3)
    assert "exchange closed" not in kinds(fed)
    assert (fed.view().state, fed.view().round) == (RunState.EXCHANGING, 1)
    resume(fed)
    assert fed.wait_for(1).state is RunState.FINISHED


def test_a_pause_takes_nobody_s_time_to_come(server: Server) -> None:
    """Who got no work during a pause has the whole time for it after the run is resumed."""
    rules = {"quorum": 1, "deadline_seconds": 2.0}
    fed = begun(server, method=rules, aggregation=rules, rounds=1)
    answers = {name: fed.responses(name, 1, 1, [1, 1]) for name in ("a", "b")}
    fed.members["a"].submit_responses(fed.run.id, 1, 1, answers["a"])
    fed.submit("a", 1, fed.adapter(1))
    pause(fed)
    time.sleep(2.5)
    assert not fed.view().rounds[1].public_steps
    resume(fed)
    time.sleep(0.5)
    assert fed.members["b"].task(fed.run.id, 0).kind is TaskKind.TRAIN
    sent = fed.members["b"].submit_responses(fed.run.id, 1, 1, answers["b"])
    assert (sent.status, fed.submit("b", 1, fed.adapter(2))) == ("accepted", "accepted")
    assert fed.wait_for(1).rounds[1].updates == 2


def test_no_alarm_is_raised_in_a_pause_and_silence_counts_anew_after_it(
    server: Server, hours: Callable[[float], None]
) -> None:
    """Members that are silent for an hour of a run that goes on are told of."""
    fed = begun(server, method="fedavg", rounds=1, aggregation={"quorum": 2})
    fed.submit("a", 1, fed.adapter(1))
    pause(fed)
    hours(24)
    time.sleep(0.3)
    assert fed.view().waiting_for is None
    resume(fed)
    time.sleep(0.3)
    assert fed.view().waiting_for is None
    hours(1.1)
    until(lambda: "waits for b, not heard of for 1 h" in (fed.view().waiting_for or ""))


def test_whoever_waits_hears_that_the_run_is_paused(server: Server) -> None:
    """With the time of the pause, in its task and while it waits for an exchange.

    Otherwise it is told whom it waits for, and once there is a quorum, until when at most.
    """
    quorum = {"quorum": 1, "deadline_seconds": 1000}
    fed = begun(server, method=quorum, aggregation=quorum)
    body = fed.responses("a", 1, 1, [1, 1])
    fed.members["a"].submit_responses(fed.run.id, 1, 1, body)
    path = paths.PUBLIC_STEP_EXCHANGED.format(run=fed.run.id, round=1, public_step=1)
    with server.http(fed.tokens["a"]) as http:
        said = http.get(path).headers[paths.WAITS_HEADER]
        assert re.fullmatch(rf"b to answer public step 1, until {MOMENT} UTC at most", said)
        pause(fed)
        at = next(e.at for e in fed.operator.events(fed.run.id).events if e.kind == "paused")
        said = f"the operator to resume the run, paused since {at:%F %T} UTC"
        assert http.get(path).headers[paths.WAITS_HEADER] == said
    assert fed.members["b"].task(fed.run.id, 0).waits_for == said
    resume(fed)
    fed.submit("a", 1, fed.adapter(1))
    said = str(fed.members["a"].task(fed.run.id, 0).waits_for)
    assert re.fullmatch(rf"b to finish round 1, until {MOMENT} UTC at most", said)
    due = datetime.fromisoformat(said[len("b to finish round 1, until ") : -len(" UTC at most")])
    left = (due - datetime.now(UTC).replace(tzinfo=None)).total_seconds()
    assert 900 < left < 1001


def test_the_operator_sees_who_holds_what(server: Server) -> None:
    """In the run's activity and with the members, until they report that they hold nothing."""
    fed = begun(server)
    done = Progress(round=1, step=1, steps=2)
    pause(fed)
    assert "holds" not in str(fed.view().activity)
    for name, holds in (("a", 1), ("b", 0)):
        fed.members[name].heartbeat(fed.run.id, done.model_copy(update={"holds": holds}))
    view = fed.view()
    assert str(view.activity).endswith(
        "a holds its responses to public step 1, b holds its update."
    )
    held = [member.progress.held for member in view.members if member.progress]
    assert held == ["holds its responses to public step 1", "holds its update"]
    fed.members["a"].heartbeat(fed.run.id, done)
    assert str(fed.view().activity).endswith("resumes it. b holds its update.")


def test_a_run_that_is_cancelled_or_goes_back_in_a_pause_refuses_what_is_held(
    server: Server,
) -> None:
    """As it would without a pause, so that no member holds what nobody will ever take."""
    fed = begun(server, rounds=2)
    run, a = fed.run.id, fed.members["a"]
    body = fed.responses("a", 1, 1, [1, 1])
    pause(fed)
    fed.operator.roll_back(run, Rollback(to=0))
    assert fed.view().paused
    assert a.paused(run)
    with pytest.raises(RoundClosed):
        a.submit_responses(run, 1, 1, body, rollbacks=0)
    with pytest.raises(RunPaused):
        a.submit_responses(run, 1, 1, body, rollbacks=1)
    fed.operator.move_run(run, paths.RUN_CANCEL)
    with pytest.raises(RunCancelled):
        a.paused(run)
    with pytest.raises(RunCancelled):
        a.submit_responses(run, 1, 1, body, rollbacks=1)


def test_an_evaluator_goes_on_in_a_pause(server: Server) -> None:
    """It sends figures alone."""
    fed = begun(server)
    evaluator = fed.members["judge"]
    pause(fed)
    assert evaluator.task(fed.run.id, 0).kind is TaskKind.EVALUATE
    evaluator.submit_evaluation(fed.run.id, 0, SCORE)
    assert fed.view().rounds[0].evaluation is not None
