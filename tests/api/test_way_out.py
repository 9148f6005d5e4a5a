"""The operator's ways out of a stuck round: exclude an update, or roll back."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.orm import Session

from pubswap_client.daemon.evaluator import Evaluator, Judged
from pubswap_protocol import paths
from pubswap_protocol.errors import Invalid, PubSwapError, RoundClosed, WrongState
from pubswap_protocol.messages import (
    ChangeRun,
    Evaluation,
    Role,
    Rollback,
    RunState,
    RunView,
    SubmitUpdate,
    Task,
    TaskKind,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import Adapter, decode_adapter, encode_adapter
from pubswap_protocol.verifiers.confined.worker import Scored
from pubswap_server.aggregation.inputs import RoundInputs
from pubswap_server.aggregation.round import Aggregated, aggregate_round
from pubswap_server.conductor import conductor
from pubswap_server.runs import rounds, runs
from pubswap_server.storage.store import BlobStore
from support.coordinator.coordinator import (
    Federation,
    Server,
    begun,
    create,
    good_hello,
    problems,
)
from support.eventually import until


def far(fed: Federation, value: float = 1e6) -> Adapter:
    """An adapter that is accepted, but useless."""
    return {name: np.full_like(array, value) for name, array in fed.adapter(0).items()}


def wait(fed: Federation, why: str) -> RunView:
    """Wait until the run waits for the operator for this reason; returns its view."""
    deadline = time.monotonic() + 20
    while why not in ((view := fed.view()).waiting_for or ""):
        assert time.monotonic() < deadline, view.waiting_for
        time.sleep(0.02)
    return view


def mean(fed: Federation, round_: int) -> Adapter:
    """A round's global adapter."""
    data = fed.operator.global_adapter(fed.run.id, str(round_))
    return decode_adapter(fed.run.model.layout, data)


def kinds(fed: Federation) -> list[str]:
    """The kinds of the run's events."""
    return [event.kind for event in fed.operator.events(fed.run.id).events]


BLOWN_UP: dict[str, Any] = {"server_optimizer": {"name": "momentum", "rate": 10.0}}


def test_an_average_that_no_upload_could_be_is_a_stall_until_its_update_is_excluded(
    server: Server,
) -> None:
    """It is not published, and the operator is told whose numbers are largest."""
    fed = begun(server, clients=3, aggregation=BLOWN_UP)
    good = fed.adapter(1)
    for name, adapter in (("a", good), ("b", good), ("c", far(fed))):
        fed.submit(name, 1, adapter)
    view = wait(fed, "pubswap run exclude")
    assert (view.state, view.round) == ("aggregating", 1)
    assert "c 1e+06" in (view.waiting_for or "")
    with server.http(None) as http:
        assert "pubswap_runs_failing 1.0" in http.get(paths.METRICS).text
    time.sleep(0.5)
    assert kinds(fed).count("waiting") == 1
    fed.operator.exclude(fed.run.id, 1, "c")
    assert fed.wait_for(1).waiting_for is None
    fed.operator.exclude(fed.run.id, 1, "c")  # again, because the answer was lost
    start = mean(fed, 0)
    for name, found in mean(fed, 1).items():
        wanted = start[name] + 10 * (good[name].astype(np.float64) - start[name])
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert kinds(fed).count("excluded by operator") == 1


def test_an_excluded_update_is_not_waited_for_and_below_the_quorum_the_round_waits(
    server: Server,
) -> None:
    """In the current round only; if the others are too few, the run says so."""
    fed = begun(server, clients=2, aggregation={"quorum": 2})
    fed.submit("a", 1, far(fed))
    fed.operator.exclude(fed.run.id, 1, "a")
    assert fed.members["a"].task(fed.run.id, 0).kind is TaskKind.WAIT
    assert fed.submit("a", 1, far(fed)) == "late, unused"
    view = wait(fed, "1 more clients are missing")
    assert view.round == 1
    fed.enroll("c")
    for name in "bc":
        fed.submit(name, 1, fed.adapter(3))
    fed.wait_for(1)
    for name, found in mean(fed, 1).items():
        assert np.allclose(found, fed.adapter(3)[name])
    with pytest.raises(PubSwapError, match="Round 2 is under way"):
        fed.operator.exclude(fed.run.id, 1, "b")
    with pytest.raises(PubSwapError, match="handed in no update"):
        fed.operator.exclude(fed.run.id, 2, "b")


def test_who_came_while_a_round_was_closed_is_asked_again_when_it_takes_updates_again(
    server: Server,
) -> None:
    """Its update was late only for the closed round. The excluded member is not asked, not even if
    it handed in an earlier round's update meanwhile."""
    rules = {**BLOWN_UP, "quorum": 2, "deadline_seconds": 0.1}
    fed = begun(server, method="fedavg", clients=3, aggregation=rules)
    good = fed.adapter(1)
    for name in "bc":
        fed.submit(name, 1, good)
    fed.wait_for(1)
    for name, adapter in (("a", far(fed)), ("b", good)):
        fed.submit(name, 2, adapter)
    wait(fed, "pubswap run exclude")
    for name, round_ in (("c", 2), ("a", 1)):
        assert fed.submit(name, round_, good) == "late, unused"
    fed.operator.exclude(fed.run.id, 2, "a")
    tasks = {name: fed.members[name].task(fed.run.id, 0).kind for name in "abc"}
    assert tasks == {"a": TaskKind.WAIT, "b": TaskKind.WAIT, "c": TaskKind.TRAIN}
    assert fed.submit("c", 2, good) == "accepted"
    assert fed.wait_for(2).rounds[2].updates == 2


def test_an_average_of_an_update_that_was_excluded_meanwhile_is_not_published(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if another replica has closed the round again before the average is ready."""
    fed = begun(server, method="fedavg", rounds=1)
    averaged: list[list[str]] = []

    def close_again(session: Session) -> None:
        rounds.close_if_due(session, runs.by_id(session, fed.run.id, lock=True))

    def slow(inputs: RoundInputs, blobs: BlobStore) -> Aggregated:
        averaged.append(inputs.members)
        if len(averaged) == 1:
            fed.operator.exclude(fed.run.id, 1, "a")
            server.do(server.app.state.services.database.write(close_again))
        return aggregate_round(inputs, blobs)

    monkeypatch.setattr(conductor, "aggregate_round", slow)
    for name, seed in (("a", 1), ("b", 2)):
        fed.submit(name, 1, fed.adapter(seed))
    fed.wait_for(1)
    assert averaged == [["a", "b"], ["b"]]
    for name, found in mean(fed, 1).items():
        assert np.allclose(found, fed.adapter(2)[name])


@pytest.mark.parametrize(
    "rules", [{"rule": "svd"}, pytest.param({"server_optimizer": "adam"}, marks=pytest.mark.full)]
)
def test_a_run_that_went_back_goes_on_as_if_the_later_rounds_had_not_been(
    server: Server, rules: dict[str, Any]
) -> None:
    """The same updates then give the same adapter and optimizer state as without it."""
    fed, alone = (begun(server, rounds=4, aggregation=rules) for _ in range(2))
    for one in (fed, alone):
        for name, seed in (("a", 1), ("b", 2)):
            one.submit(name, 1, one.adapter(seed))
        one.wait_for(1)
    for round_ in (2, 3):
        for name in "ab":
            fed.submit(name, round_, far(fed, 50.0 * round_))
        fed.wait_for(round_)
    fed.submit("a", 4, fed.adapter(9))
    view = fed.operator.roll_back(fed.run.id, Rollback(to=1))
    assert (view.state, view.round) == ("training", 2)
    task = fed.members["a"].task(fed.run.id, 0)
    assert (task.kind, task.round) == (TaskKind.TRAIN, 2)
    for one in (fed, alone):
        for name, seed in (("a", 3), ("b", 4)):
            assert one.submit(name, 2, one.adapter(seed)) == "accepted"
        one.wait_for(2)
    for which in ("1", "2"):
        two = [bytes(one.operator.global_adapter(one.run.id, which)) for one in (fed, alone)]
        assert two[0] == two[1]
    assert [one.rollbacks for one in fed.view().rounds] == [0, 0, 1, 1]
    (event,) = [e for e in fed.operator.events(fed.run.id).events if e.kind == "rolled back"]
    assert [entry["round"] for entry in event.details["rounds"]] == [2, 3]
    for wrong in (3, 7):
        with pytest.raises(PubSwapError, match="roll back to a round from 0 to 2"):
            fed.operator.roll_back(fed.run.id, Rollback(to=wrong))


def test_a_public_step_after_going_back_is_a_new_exchange(server: Server) -> None:
    """Nobody gets responses from the earlier exchange."""
    fed = begun(server, rounds=3)
    answers = []
    for right in ([4, 4], [1, 1]):
        for name, correct in (("a", right), ("b", [4, 4])):
            body = fed.responses(name, 1, 1, correct)
            fed.members[name].submit_responses(fed.run.id, 1, 1, body)
        answers.append(bytes(fed.members["a"].exchanged(fed.run.id, 1, 1)))
        fed.operator.roll_back(fed.run.id, Rollback(to=0))
    assert answers[0] and answers[1] and answers[0] != answers[1]


def test_who_is_in_a_round_that_the_run_has_left_is_told_that_it_is_closed(server: Server) -> None:
    """On every request, because that error makes its daemon ask for its task; others end it."""
    fed = begun(server, rounds=3)
    a, run = fed.members["a"], fed.run.id
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    fed.wait_for(1)
    body = fed.responses("a", 2, 1, [1, 1])
    fed.operator.roll_back(run, Rollback(to=0))
    data = encode_adapter(fed.run.model.layout, fed.adapter(2))
    a.put_blob(run, data)
    for call in (
        lambda: a.public_step_prompts(run, 2, 1),
        lambda: a.submit_responses(run, 2, 1, body),
        lambda: a.exchanged(run, 2, 1),
        lambda: fed.hand_in("a", 2, data),
    ):
        with pytest.raises(RoundClosed, match="Round 2 is not under way; the run is in round 1"):
            call()


def test_an_update_from_an_adapter_that_was_undone_is_not_averaged(server: Server) -> None:
    """A member that trained through a rollback and the rounds since is told to start again."""
    fed = begun(server, method="fedavg", clients=3, rounds=3, aggregation={"deadline_seconds": 0.1})
    run, c = fed.run.id, fed.members["c"]

    def round_1(seed: int) -> str:
        for name in "ab":
            fed.submit(name, 1, fed.adapter(seed))
        fed.wait_for(1)
        return c.task(run, 0).adapter or ""

    undone = round_1(1)
    fed.operator.roll_back(run, Rollback(to=0))
    start = round_1(2)
    data = encode_adapter(fed.run.model.layout, fed.adapter(3))
    metrics = UpdateMetrics(examples=1, steps=fed.run.settings.local_steps)
    update = SubmitUpdate(adapter=c.put_blob(run, data), metrics=metrics)
    with pytest.raises(RoundClosed, match="round 2 begins from another adapter"):
        c.submit_update(run, 2, update, undone)
    assert c.submit_update(run, 1, update, undone).status == "late, unused"
    assert c.submit_update(run, 2, update, start).status == "accepted"
    assert c.submit_update(run, 2, update, undone).status == "accepted"  # a repeat


def judged(*rewards: float) -> list[list[Judged]]:
    """Judged responses to as many problems."""
    scored = zip(problems(len(rewards)), rewards, strict=True)
    return [
        [Judged(("", problem), Scored(reward, 0.0), bool(reward))] for problem, reward in scored
    ]


@pytest.mark.parametrize("again", [False, True])
def test_an_evaluation_that_a_rollback_overtook_is_no_other_adapter_s(
    server: Server, again: bool, tmp_path: Path
) -> None:
    """Whether or not its round has a new adapter, the evaluator asks for its next task."""
    fed = begun(server, method="fedavg")
    judge = fed.members["judge"]

    def round_1(seed: int) -> None:
        for name in "ab":
            fed.submit(name, 1, fed.adapter(seed))
        fed.wait_for(1)

    def went_back(*_: object) -> list[list[Judged]]:
        fed.operator.roll_back(fed.run.id, Rollback(to=0))
        if again:
            round_1(2)
        return judged(1, 1)

    round_1(1)
    for score in (lambda *_: judged(0, 0), went_back):
        Evaluator(judge, fed.run, score).evaluate(judge.task(fed.run.id, 0))
    first, second, *_ = fed.view().rounds
    assert first.evaluation is not None
    assert second.evaluation is None


def test_an_evaluator_whose_adapter_a_rollback_has_taken_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the adapter disappears while it is being downloaded, the evaluator asks for a new task."""
    fed = begun(server, method="fedavg", rounds=2)
    judge, run = fed.members["judge"], fed.run.id

    def finish(round_: int, seed: int) -> None:
        for name in "ab":
            fed.submit(name, round_, fed.adapter(seed))
        fed.wait_for(round_)

    finish(1, seed=1)
    blob, scored = judge.blob, []

    def went_back(*asked: Any, **options: Any) -> memoryview:
        monkeypatch.setattr(judge, "blob", blob)
        fed.operator.roll_back(run, Rollback(to=0))
        return blob(*asked, **options)

    def score(*_: object) -> list[list[Judged]]:
        scored.append(0.5)
        if len(scored) == 1:
            monkeypatch.setattr(judge, "blob", went_back)
        return judged(0, 1)

    evaluator = Evaluator(judge, fed.run, score)
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(evaluator.work)
        until(lambda: len(fed.view().rounds) > 1 and fed.view().rounds[1].rollbacks == 1)
        finish(1, seed=2)
        finish(2, seed=3)
        assert ended.result(60) is RunState.FINISHED
    assert [one.evaluation is not None for one in fed.view().rounds] == [True] * 3


def test_an_evaluator_that_another_has_overtaken_with_other_figures_goes_on(
    server: Server, tmp_path: Path
) -> None:
    """Figures differ on another GPU; the first to arrive count."""
    fed = begun(server, method="fedavg")
    fed.enroll("other", Role.EVALUATOR).hello(fed.run.id, good_hello(fed.run))
    judge, other = fed.members["judge"], fed.members["other"]
    submit = judge.submit_evaluation

    def overtaken(run: str, round_: int, body: Evaluation) -> None:
        other.submit_evaluation(run, round_, body.model_copy(update={"pass_at_1": 0.25}))
        fed.operator.move_run(run, paths.RUN_CANCEL)
        submit(run, round_, body)

    judge.submit_evaluation = overtaken  # type: ignore[method-assign]
    evaluator = Evaluator(judge, fed.run, lambda *_: judged(0, 1))
    assert evaluator.work() is RunState.CANCELLED
    assert fed.view().rounds[0].evaluation.pass_at_1 == 0.25  # type: ignore[union-attr]


def test_a_run_may_start_with_fewer_clients_than_it_was_made_for(server: Server) -> None:
    """While it is open and within its rules; each change is logged once."""
    fed = create(server, clients=3, aggregation={"quorum": 2})
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    for name in "ab":
        fed.enroll(name)
    with pytest.raises(WrongState, match=f"pubswap run resize {fed.run.name} N"):
        fed.start()
    with pytest.raises(Invalid, match="quorum is larger"):
        fed.operator.change_run(fed.run.id, ChangeRun(clients=1))
    for _ in range(2):
        changed = fed.operator.change_run(fed.run.id, ChangeRun(clients=2))
        assert changed.settings.clients == 2
    [event] = [event for event in fed.operator.events(fed.run.id).events if event.kind == "set"]
    assert event.details == {"clients": 2, "before": 3}
    fed.start()
    for name in "ab":
        fed.submit(name, 1, fed.adapter(1))
    assert wait_for_round(fed, 2).settings.clients == 2
    with pytest.raises(WrongState, match="before it starts"):
        fed.operator.change_run(fed.run.id, ChangeRun(clients=3))


def wait_for_round(fed: Federation, round_: int) -> RunView:
    deadline = time.monotonic() + 20
    while (view := fed.view()).round < round_:
        assert time.monotonic() < deadline, view
        time.sleep(0.02)
    return view


def test_who_is_in_a_round_that_a_rollback_begins_again_is_told_so(server: Server) -> None:
    """Its task counts rollbacks, and work begun before the last one is refused."""
    fed = begun(server, rounds=3)
    a, run = fed.members["a"], fed.run.id
    before = a.task(run, 0)
    body = fed.responses("a", 1, 1, [1, 1])
    fed.operator.roll_back(run, Rollback(to=0))
    after = a.task(run, 0)
    assert (after.round, after.adapter) == (before.round, before.adapter)
    assert (before.rollbacks, after.rollbacks) == (0, 1)
    metrics = UpdateMetrics(examples=1, steps=fed.run.settings.local_steps)
    data = encode_adapter(fed.run.model.layout, fed.adapter(1))
    update = SubmitUpdate(adapter=a.put_blob(run, data), metrics=metrics)

    def calls(task: Task) -> list[Callable[[], object]]:
        return [
            lambda: a.public_step_prompts(run, 1, 1, task.rollbacks),
            lambda: a.submit_responses(run, 1, 1, body, task.rollbacks),
            lambda: a.submit_update(run, 1, update, task.adapter, task.rollbacks),
        ]

    for call in calls(before):
        with pytest.raises(RoundClosed, match="The run went back, and round 1 was begun again"):
            call()
    for call in calls(after):
        call()
