"""A run's life over HTTP, with fake members that submit random adapters."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    IdempotencyMismatch,
    InvalidAdapter,
    NotFound,
    RoundClosed,
    RunCancelled,
    WrongState,
)
from pubswap_protocol.messages import (
    Away,
    CreateInvite,
    Evaluation,
    Progress,
    RunState,
    SubmitUpdate,
    TaskKind,
    UpdateMetrics,
)
from pubswap_protocol.tensors.adapter import (
    AdapterFile,
    decode_adapter,
    encode_adapter,
    initial_adapter,
)
from pubswap_protocol.tensors.responses import ResponseRules, decode_responses
from pubswap_protocol.tensors.update_encoding import encode_update, view_update
from pubswap_server import notifications
from pubswap_server.conductor import conductor
from pubswap_server.database.tables import RoundRow, RunRow
from pubswap_server.runs import members
from pubswap_server.services import Services
from support.coordinator.coordinator import Server, begun, create, good_hello
from support.coordinator.places import on_sqlite
from support.eventually import until

MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


# Counts connections that wait for the lock on the run's row.
WAITING = text(
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND query ~ 'FROM runs\\s+WHERE runs.id = .* FOR UPDATE'"
)


def evaluation(score: float) -> Evaluation:
    """An evaluation with this pass@1."""
    return Evaluation(pass_at_1=score, by_topic={"say": score}, problems=5, seconds=0.1)


def test_a_run_goes_from_created_to_finished(server: Server) -> None:
    """Two rounds of two members yield the means of their adapters, evaluated and exported."""
    fed = begun(server, method="fedavg")
    layout = fed.run.model.layout
    start = decode_adapter(layout, fed.operator.global_adapter(fed.run.id, "0"))
    for name, tensor in initial_adapter(layout, 0).items():
        assert np.array_equal(start[name], tensor)
    for round_ in (1, 2):
        task = fed.members["a"].task(fed.run.id, 5)
        assert (task.kind, task.round) == (TaskKind.TRAIN, round_)
        assert task.adapter == digest_of(fed.members["a"].blob(fed.run.id, task.adapter or ""))
        mine, theirs = fed.adapter(round_), fed.adapter(10 + round_)
        assert fed.submit("a", round_, mine) == "accepted"
        assert fed.members["a"].task(fed.run.id, 0).kind is TaskKind.WAIT
        assert fed.submit("b", round_, theirs) == "accepted"
        view = fed.wait_for(round_)
        mean = decode_adapter(layout, fed.operator.global_adapter(fed.run.id, str(round_)))
        for name in layout.tensors:
            expected = (mine[name].astype(np.float64) + theirs[name]) / 2
            assert np.allclose(mean[name], expected, atol=1e-7)
        distance = sum(((mine[n] - theirs[n]).astype(np.float64) ** 2).sum() for n in mine) ** 0.5
        drift = view.rounds[round_].drift
        assert drift is not None
        assert drift.pairwise == pytest.approx(distance, rel=1e-5)
        assert drift.from_mean == pytest.approx(distance / 2, rel=1e-5)
    assert fed.view().state is RunState.FINISHED
    assert fed.members["a"].task(fed.run.id, 0).kind is TaskKind.FINISHED

    judge = fed.members["judge"]
    for round_, score in ((0, 0.2), (1, 0.6), (2, 0.4)):
        task = judge.task(fed.run.id, 0)
        assert (task.kind, task.round) == (TaskKind.EVALUATE, round_)
        judge.submit_evaluation(fed.run.id, round_, evaluation(score))
    assert judge.task(fed.run.id, 0).kind is TaskKind.FINISHED
    best = fed.operator.global_adapter(fed.run.id, "best")
    assert best == fed.operator.global_adapter(fed.run.id, "1")
    assert best == fed.members["a"].global_adapter(fed.run.id, "best")
    assert fed.operator.global_adapter(fed.run.id, "final") != best
    kinds = [event.kind for event in fed.operator.events(fed.run.id).events]
    assert kinds.count("update") == 4
    assert kinds[0] == "created"
    assert "aggregated" in kinds


@on_sqlite
def test_updates_are_weighted_by_examples_when_the_run_says_so(server: Server) -> None:
    """A member with three times the examples has three times the weight."""
    weighing = {"weights": {"name": "examples", "max_share": 1.0}}
    fed = begun(server, method="fedavg", rounds=1, aggregation=weighing)
    mine, theirs = fed.adapter(1), fed.adapter(2)
    fed.submit("a", 1, mine, examples=30)
    fed.submit("b", 1, theirs, examples=10)
    fed.wait_for(1)
    mean = decode_adapter(fed.run.model.layout, fed.operator.global_adapter(fed.run.id, "final"))
    for name, tensor in mean.items():
        assert np.allclose(tensor, 0.75 * mine[name] + 0.25 * theirs[name], atol=1e-6)


@on_sqlite
def test_a_run_in_reduced_precision_ends_in_the_mean(server: Server, tmp_path: Path) -> None:
    """Updates encode differences to the previous round."""
    fed = begun(server, method="fedavg", wire={"precision": "bfloat16"})
    layout = fed.run.model.layout
    expected = decode_adapter(layout, fed.operator.global_adapter(fed.run.id, "0"))
    for round_ in (1, 2):
        base, views = expected, []
        (tmp_path / "base").write_bytes(encode_adapter(layout, base))
        start = AdapterFile(tmp_path / "base", layout)
        for name in "ab":
            trained = {n: t + fed.adapter(round_ + ord(name))[n] / 9 for n, t in base.items()}
            body = encode_update(layout, "bfloat16", trained, base)
            (tmp_path / name).write_bytes(body)
            views.append(view_update(tmp_path / name, layout, "bfloat16", start))
            digest = fed.members[name].put_blob(fed.run.id, body)
            update = SubmitUpdate(adapter=digest, metrics=UpdateMetrics(examples=1, steps=2))
            assert fed.members[name].submit_update(fed.run.id, round_, update).status == "accepted"
            assert fed.members[name].blob(fed.run.id, digest) == body
        fed.wait_for(round_)
        found = decode_adapter(layout, fed.operator.global_adapter(fed.run.id, str(round_)))
        for n in layout.tensors:
            exact = (views[0].tensor(n).astype(np.float64) + views[1].tensor(n)) / 2
            assert np.array_equal(found[n], exact.astype(np.float32))
        expected = found
        if round_ == 1:
            with pytest.raises(InvalidAdapter):
                fed.members["a"].put_blob(fed.run.id, encode_adapter(layout, expected))
    assert fed.view().state is RunState.FINISHED


@on_sqlite
def test_an_update_in_another_precision_than_the_run_s_is_refused(server: Server) -> None:
    """A bfloat16 file is not a valid adapter in a float32 run."""
    fed = begun(server, method="fedavg")
    layout = fed.run.model.layout
    body = encode_update(layout, "bfloat16", fed.adapter(1), fed.adapter(2))
    with pytest.raises(InvalidAdapter):
        fed.members["a"].put_blob(fed.run.id, body)


@on_sqlite
def test_keep_replaces_wrong_responses_by_peers_right_ones(server: Server) -> None:
    """A client with no right response gets half a group from its peer, which keeps its own."""
    fed = begun(server)
    bodies = {"a": fed.responses("a", 1, 1, [0, 3]), "b": fed.responses("b", 1, 1, [4, 2])}
    fed.members["a"].submit_responses(fed.run.id, 1, 1, bodies["a"])
    assert fed.view().state is RunState.EXCHANGING
    fed.members["b"].submit_responses(fed.run.id, 1, 1, bodies["b"])
    prompts = fed.members["a"].public_step_prompts(fed.run.id, 1, 1).prompts
    rules = ResponseRules.of(fed.run.model, fed.run.settings, [p.index for p in prompts])
    groups = decode_responses(fed.members["a"].exchanged(fed.run.id, 1, 1), rules)
    assert [sum(r.donated for r in group) for group in groups] == [2, 0]
    theirs = decode_responses(bodies["b"], rules)
    for response in groups[0]:
        own = not response.donated
        pool = decode_responses(bodies["a"], rules)[0] if own else theirs[0]
        assert any(np.array_equal(response.tokens, other.tokens) for other in pool)
    again = fed.members["a"].exchanged(fed.run.id, 1, 1)
    assert again == fed.members["a"].exchanged(fed.run.id, 1, 1)
    kept = decode_responses(fed.members["b"].exchanged(fed.run.id, 1, 1), rules)
    assert not any(r.donated for group in kept for r in group)
    view = fed.view()
    assert view.state is RunState.TRAINING
    (public_step,) = view.rounds[1].public_steps
    assert (public_step.clients, public_step.replaced) == (2, 2)
    assert public_step.replaced_share == {"a": 0.25, "b": 0.0}
    assert public_step.correct_share == {"a": 0.375, "b": 0.75}
    traffic = view.rounds[1].traffic
    assert traffic.responses_up == len(bodies["a"]) + len(bodies["b"])
    assert traffic.responses_down > 0


@on_sqlite
def test_random_gives_every_client_the_same_responses(server: Server) -> None:
    """Both train on the same K of the pool, each with its peer's marked as donated."""
    fed = begun(server, method={"strategy": "random"})
    for name, right in (("a", [1, 1]), ("b", [2, 3])):
        fed.members[name].submit_responses(fed.run.id, 1, 1, fed.responses(name, 1, 1, right))
    prompts = fed.members["a"].public_step_prompts(fed.run.id, 1, 1).prompts
    rules = ResponseRules.of(fed.run.model, fed.run.settings, [p.index for p in prompts])
    groups = {
        name: decode_responses(fed.members[name].exchanged(fed.run.id, 1, 1), rules)
        for name in ("a", "b")
    }
    for mine, theirs in zip(groups["a"], groups["b"], strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert np.array_equal(one.tokens, other.tokens)
            assert one.donated != other.donated


def test_a_submission_sent_again_gets_the_same_receipt_and_another_is_refused(
    server: Server,
) -> None:
    """Retries of updates and responses are harmless; different content is refused."""
    fed = begun(server)
    body = fed.responses("a", 1, 1, [1, 1])
    api = fed.members["a"]
    first = api.submit_responses(fed.run.id, 1, 1, body)
    assert api.submit_responses(fed.run.id, 1, 1, body) == first
    with pytest.raises(IdempotencyMismatch):
        api.submit_responses(fed.run.id, 1, 1, fed.responses("a", 1, 1, [2, 1]))
    assert fed.submit("a", 1, fed.adapter(1)) == fed.submit("a", 1, fed.adapter(1)) == "accepted"
    with pytest.raises(IdempotencyMismatch):
        fed.submit("a", 1, fed.adapter(2))


def test_a_round_closes_with_a_quorum_after_its_deadline_and_a_late_update_is_unused(
    server: Server,
) -> None:
    """A straggler does not stop the run, and is told that it was late."""
    rules = {"quorum": 1, "deadline_seconds": 0.3}
    fed = begun(server, method="fedavg", aggregation=rules)
    mine = fed.adapter(1)
    fed.submit("a", 1, mine)
    view = fed.wait_for(1)
    assert view.rounds[1].updates == 1
    mean = decode_adapter(fed.run.model.layout, fed.operator.global_adapter(fed.run.id, "1"))
    assert all(np.array_equal(mean[name], mine[name]) for name in mine)
    assert fed.submit("b", 1, fed.adapter(2)) == "late, unused"
    assert fed.view().rounds[1].updates == 1


def test_an_exchange_closes_after_its_deadline_and_the_late_client_trains_on_its_own(
    server: Server,
) -> None:
    """The punctual client gets its own responses back; the late one is told that it is late."""
    fed = begun(server, method={"deadline_seconds": 0.3})
    fed.members["a"].submit_responses(fed.run.id, 1, 1, fed.responses("a", 1, 1, [0, 0]))
    assert fed.members["a"].exchanged(fed.run.id, 1, 1)
    late = fed.members["b"].submit_responses(fed.run.id, 1, 1, fed.responses("b", 1, 1, [4, 4]))
    assert late.status == "late, unused"
    with pytest.raises(RoundClosed, match="train on your own"):
        fed.members["b"].exchanged(fed.run.id, 1, 1)


@on_sqlite
def test_deadlines_are_looked_at_while_another_run_changes_all_the_time(server: Server) -> None:
    """However busy one run keeps the coordinator, others go on."""
    rules = {"quorum": 1, "deadline_seconds": 0.3}
    fed = begun(server, method="fedavg", rounds=1, aggregation=rules)
    services = server.app.state.services

    async def change(other: str) -> None:
        while True:
            services.changes.notify(other, awaited=False)
            await asyncio.sleep(services.settings.tick_seconds / 10)

    async def began() -> asyncio.Task[None]:
        return asyncio.create_task(change("another"))

    busy = server.do(began())
    try:
        fed.submit("a", 1, fed.adapter(1))
        assert fed.wait_for(1).rounds[1].updates == 1
    finally:
        server.app.state.loop.call_soon_threadsafe(busy.cancel)


@on_sqlite
def test_a_run_that_waits_for_its_members_is_not_moved_on_at_every_tick(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval between polls grows with the time since the last change; here it doubles."""
    monkeypatch.setattr(notifications, "POLL_SHARE", 1.0)
    fed = begun(server, method="fedavg", rounds=1)
    polled: list[str] = []

    async def advance(services: Services, run: str, explain: bool) -> None:
        polled.append(run)

    fed.submit("a", 1, fed.adapter(1))
    monkeypatch.setattr(conductor, "advance", advance)
    until(lambda: polled.count(fed.run.id) > 1)
    time.sleep(40 * server.app.state.services.settings.tick_seconds)
    assert polled.count(fed.run.id) < 15


@on_sqlite
def test_a_revoked_member_is_no_longer_waited_for(server: Server) -> None:
    """Revoking the straggler closes the round."""
    fed = begun(server, method="fedavg", rounds=1)
    fed.submit("a", 1, fed.adapter(1))
    fed.operator.revoke(fed.run.id, "b")
    assert fed.wait_for(1).state is RunState.FINISHED
    with pytest.raises(NotFound):
        fed.operator.revoke(fed.run.id, "nobody")


def test_a_cancelled_run_takes_nothing_from_those_who_train(server: Server) -> None:
    """All of a round's requests, waiting ones included, get the same error; nothing is stored."""
    fed = begun(server)
    run, a, b = fed.run.id, fed.members["a"], fed.members["b"]
    blob = a.put_blob(run, encode_adapter(fed.run.model.layout, fed.adapter(1)))
    update = SubmitUpdate(adapter=blob, metrics=UpdateMetrics(examples=1, steps=2))
    bodies = {name: fed.responses(name, 1, 1, [1, 1]) for name in "ab"}
    a.submit_responses(run, 1, 1, bodies["a"])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.exchanged, run, 1, 1)
        until(lambda: server.long_polls() == 1)
        fed.operator.move_run(run, paths.RUN_CANCEL)
        assert isinstance(waiting.exception(20), RunCancelled)
    for ask in (
        lambda: a.heartbeat(run, Progress(round=1, step=1, steps=2)),
        lambda: b.public_step_prompts(run, 1, 1),
        lambda: b.submit_responses(run, 1, 1, bodies["b"]),
        lambda: b.put_blob(run, b"an adapter"),
        lambda: a.submit_update(run, 1, update),
    ):
        with pytest.raises(RunCancelled):
            ask()
    kinds = [event.kind for event in fed.operator.events(run).events]
    assert (kinds.count("responses"), kinds.count("update")) == (1, 0)


@on_sqlite
def test_a_cancelled_run_ends_for_everybody(server: Server) -> None:
    """Members are told that it is over, and it cannot be restarted."""
    fed = begun(server)
    fed.operator.move_run(fed.run.id, paths.RUN_CANCEL)
    assert fed.members["a"].task(fed.run.id, 0).state is RunState.CANCELLED
    assert fed.members["a"].task(fed.run.id, 0).kind is TaskKind.FINISHED
    assert fed.members["judge"].task(fed.run.id, 0).kind is TaskKind.FINISHED
    with pytest.raises(WrongState):
        fed.operator.move_run(fed.run.id, paths.RUN_START)


def test_a_long_poll_is_answered_when_the_run_starts(server: Server) -> None:
    """A waiting client gets its task without asking again."""
    fed = create(server, clients=1)
    fed.operator.move_run(fed.run.id, paths.RUN_OPEN)
    api = fed.enroll("a")
    timer = threading.Timer(0.3, fed.start)
    started = time.monotonic()
    timer.start()
    assert api.task(fed.run.id, 30).kind is TaskKind.TRAIN
    assert 0.2 < time.monotonic() - started < 20
    timer.join()


@on_sqlite
def test_progress_and_members_are_shown_to_the_operator_alone(server: Server) -> None:
    """Heartbeats report progress; members do not see each other."""
    fed = begun(server)
    fed.members["a"].heartbeat(fed.run.id, Progress(round=1, step=2, steps=2, reward=0.5))
    member = next(m for m in fed.operator.members(fed.run.id).members if m.name == "a")
    assert member.progress is not None
    assert member.progress.reward == 0.5
    assert member.last_seen is not None
    assert fed.members["a"].run(fed.run.id).members == []


def test_every_request_of_a_member_is_a_sign_of_life(server: Server) -> None:
    """`unseen_seconds` counts from its last request of any kind, on the coordinator's clock."""
    fed = begun(server)

    def unseen() -> float | None:
        return next(
            m for m in fed.operator.members(fed.run.id).members if m.name == "a"
        ).unseen_seconds

    fed.members["a"].task(fed.run.id, 0)
    time.sleep(1.5)
    assert 1.4 < (unseen() or 0) < 30
    asked = time.monotonic()
    fed.members["a"].run(fed.run.id)
    age = unseen()
    assert age is not None and age <= time.monotonic() - asked
    fed.operator.enroll(fed.operator.invite(fed.run.id, CreateInvite(name="c")).invite)
    silent = fed.operator.members(fed.run.id).members
    assert next(m for m in silent if m.name == "c").unseen_seconds is None


def test_an_evaluation_sent_again_is_taken_and_another_result_is_refused(server: Server) -> None:
    """The evaluator may retry, but not change its result."""
    fed = begun(server)
    judge = fed.members["judge"]
    judge.submit_evaluation(fed.run.id, 0, evaluation(0.5))
    judge.submit_evaluation(fed.run.id, 0, evaluation(0.5))
    with pytest.raises(IdempotencyMismatch):
        judge.submit_evaluation(fed.run.id, 0, evaluation(0.6))
    with pytest.raises(NotFound):
        judge.submit_evaluation(fed.run.id, 1, evaluation(0.6))


@on_sqlite
def test_an_update_for_a_round_that_has_not_begun_is_refused(server: Server) -> None:
    """An update for round 2 is refused in round 1."""
    fed = begun(server)
    data = encode_adapter(fed.run.model.layout, fed.adapter(1))
    digest = fed.members["a"].put_blob(fed.run.id, data)
    update = SubmitUpdate(adapter=digest, metrics=UpdateMetrics(examples=1, steps=2))
    with pytest.raises(RoundClosed, match="round 1"):
        fed.members["a"].submit_update(fed.run.id, 2, update)


@pytest.mark.parametrize(
    "place", [pytest.param("postgresql and bucket", marks=pytest.mark.full)], indirect=True
)
def test_who_comes_back_just_when_a_round_begins_is_in_it(server: Server) -> None:
    """Its hello waits for the transaction that begins the round, and nobody is further in it."""
    fed = begun(server, method="fedavg", clients=3)
    run, c = fed.run.id, fed.members["c"]
    c.away(run, Away(code="left", detail="It left."))
    fed.submit("a", 1, fed.adapter(1))

    engine = server.app.state.services.database.engine

    def begin(session: Session) -> None:
        row = session.get_one(RunRow, run, with_for_update=True)
        row.round += 1
        session.add(RoundRow(run_id=run, round=row.round))
        members.begin_round(session, run)
        session.flush()
        back.start()
        server.app.state.services.changes.notify(run, awaited=False)
        with engine.connect() as another:
            another = another.execution_options(isolation_level="AUTOCOMMIT")
            until(lambda: another.scalar(WAITING) == 2, 20)  # the conductor, and the hello

    back = threading.Thread(target=c.hello, args=(run, good_hello(fed.run)))
    server.do(server.app.state.services.database.write(begin))
    back.join()
    assert not any(member.joining for member in fed.operator.members(run).members)
