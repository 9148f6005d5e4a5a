"""A client's rounds when its process is killed at any point: bits, bytes sent, and the summary."""

import dataclasses
import itertools
import time
from collections.abc import Callable
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pubswap_client.consent import participation as participation_module
from pubswap_client.consent.participation import Participation
from pubswap_client.coordinator import retry
from pubswap_client.coordinator.retry import IDLE_SECONDS
from pubswap_client.coordinator.route import LONG_POLL_SECONDS
from pubswap_client.daemon.context import MemberContext
from pubswap_client.daemon.daemon import Daemon
from pubswap_client.daemon.own_settings import Deadline, RoundLimits
from pubswap_client.daemon.recorder import Recorder
from pubswap_client.daemon.reporters import LogLines, Reporters, StepReport
from pubswap_client.daemon.signals import until_stopped
from pubswap_client.rollout.transformers_engine import (
    Prompts,
    SamplingParameters,
    TransformersEngine,
)
from pubswap_client.state.history import HISTORY, RoundFigures, read
from pubswap_client.state.journal import Journal, JournalOwner
from pubswap_client.state.status import read_status
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    Diverged,
    HelloNeeded,
    IdempotencyMismatch,
    InvalidProblems,
    PubSwapError,
    RefusedByPolicy,
    RoundClosed,
    RunCancelled,
    UnknownBlob,
    WrongState,
)
from pubswap_protocol.messages import (
    Progress,
    PublicStepPrompts,
    Receipt,
    ReceiptStatus,
    RunState,
    SubmitUpdate,
    Task,
    TaskKind,
)
from pubswap_protocol.methods.method import PubSwap
from pubswap_protocol.schedule import public_step_number, update_order
from pubswap_protocol.settings import WireSettings
from pubswap_protocol.tensors.adapter import (
    encode_adapter,
    initial_adapter,
)
from pubswap_protocol.tensors.responses import Response
from support.client.one_client import (
    ROUNDS,
    STEPS,
    Killed,
    World,
    kill_again_and_again,
)


def recorder(one: World) -> Recorder:
    connection: Any = SimpleNamespace(sent=1, received=2)
    return Recorder(one.state, one.coordinator.run, connection, digest_of(b"its problems"), 2)


def rounds_of(one: World) -> list[dict[str, Any]]:
    """The history without times and durations."""
    found = read(one.state / HISTORY, one.coordinator.run.id, RoundFigures)
    return [each.model_dump(exclude={"at", "seconds", "waited"}) for each in found]


def training(one: World, round_: int = 1) -> Task:
    """A task to train a round from some adapter."""
    run = one.coordinator.run
    data = encode_adapter(run.model.layout, initial_adapter(run.model.layout, 3))
    start = one.coordinator.put_blob(run.id, data)
    return Task(kind=TaskKind.TRAIN, state=RunState.TRAINING, round=round_, adapter=start)


def worked(one: World, *tasks: Task, state: RunState = RunState.FINISHED) -> list[float]:
    """Run a daemon that is given these tasks, and then that the run has ended in `state`.

    Returns the longest wait that it allowed for each of them.
    """
    run, given = one.coordinator.run, iter([*tasks, Task(kind=TaskKind.FINISHED, state=state)])
    api: Any = one.coordinator
    waits: list[float] = []

    def task(_: str, wait: float) -> Task:
        waits.append(wait)
        return next(given)

    api.task = task
    journal = Journal(one.state, JournalOwner.of(run, "a"))
    reporter = Reporters([LogLines(), recorder(one)])
    context = MemberContext(
        api=api,
        run=run,
        trainer=one.trainer(None),
        journal=journal,
        reporter=reporter,
        limits=one.limits,
        deadline=Deadline(one.end),
        public=api.problems,
    )
    assert Daemon(context).work() is state
    assert next(given, None) is None
    return waits


def test_a_round_that_diverges_is_sat_out_until_another_task(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member has poisoned the adapter: nobody waits for us, and a rollback brings us back."""
    monkeypatch.setattr(participation_module, "ASK_SECONDS", 0.0)
    one = world()
    run, api, said = one.coordinator.run, one.coordinator, list[str]()
    poisoned = training(one, 2)
    again = training(one).model_copy(update={"rollbacks": 1})
    finished = Task(kind=TaskKind.FINISHED, state=RunState.FINISHED)
    refused = RefusedByPolicy("until the policy is read again")
    upgraded = poisoned.model_copy(update={"waits_for": "a hello that `task` has said"})
    given = iter([poisoned, poisoned, refused, upgraded, again, again, finished])
    now, fake = [poisoned], cast(Any, api)

    def task(*_: object) -> Task:
        one_of_them = next(given)
        if isinstance(one_of_them, RefusedByPolicy):
            raise one_of_them
        if one_of_them is upgraded:
            said.append("hello")
        now.append(one_of_them)
        return one_of_them

    fake.task = task
    asked: Any = SimpleNamespace(
        run=lambda _: run.model_copy(update={"round": now[-1].round}),
        task=task,
        away=lambda _, reason: said.append(reason.code),
        hello=lambda *_: said.append("hello"),
    )
    policy: Any = SimpleNamespace(coordinator_refusals=lambda: (), review=lambda _: ())
    hello: Any = "hello"
    journal = Journal(one.state, JournalOwner.of(run, "a"))
    trainer = one.trainer(None)
    made = trainer.private_step

    def step(number: int) -> StepMetrics:
        if trainer.round == 2:
            raise Diverged("In this step loss is nan.")
        return made(number)

    monkeypatch.setattr(trainer, "private_step", step)
    member = Daemon(MemberContext(fake, run, trainer, journal, LogLines(), public=api.problems))
    with pytest.raises(Diverged):  # in a simulation, which has no policy
        member.work()
    member.participation = Participation(asked, run.id, policy, hello)
    assert member.work() is RunState.FINISHED
    # Again after the refusal, and after the coordinator's upgrade.
    assert said == ["diverged", "diverged", "hello", "diverged", "hello"]
    assert [*api.updates] == [1]


HALF = WireSettings(precision="bfloat16")
PIPELINED = PubSwap(mode="pipelined")


def steps_of(update: SubmitUpdate) -> dict[str, Any]:
    """A submitted update without its durations."""
    times = {"seconds", "sampling_seconds", "waiting_seconds", "transfer_seconds"}
    return update.model_dump(exclude={"metrics": times})


RUNS = {
    "fedavg bfloat16 resample": {"method": "fedavg", "wire": HALF, "grpo": {"resample": 2}},
    "pubswap keep": {"method": PubSwap(period=3), "grpo": {"optimizer_state": "keep"}},
    "pipelined keep": {
        "method": PIPELINED.model_copy(update={"donor_ratio": "decoupled"}),
        "grpo": {"optimizer_state": "keep"},
    },
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="pubswap"),
        pytest.param({"dtype": "bfloat16"}, id="bfloat16"),
        *(pytest.param(run, id=name, marks=pytest.mark.full) for name, run in RUNS.items()),
    ],
)
def test_a_client_that_dies_again_and_again_hands_in_the_same(
    world: Callable[..., World], changes: dict[str, Any]
) -> None:
    """Adapters, bytes sent and summaries equal an undisturbed client's in every bit.

    So does its history but for times, with each round once.
    """
    undisturbed, killed = world(**changes), world(**changes)
    undisturbed.live(recorder(undisturbed))
    assert kill_again_and_again(killed, lambda: recorder(killed)) > 5
    assert rounds_of(killed) == rounds_of(undisturbed)
    assert [one["round"] for one in rounds_of(killed)] == list(range(1, ROUNDS + 1))
    assert killed.adapters() == undisturbed.adapters()
    assert killed.coordinator.submitted == undisturbed.coordinator.submitted
    assert killed.coordinator.mismatches == 0
    for number, update in undisturbed.coordinator.updates.items():
        assert steps_of(killed.coordinator.updates[number]) == steps_of(update)


@pytest.mark.parametrize("mode", ["synchronous", "pipelined"])
def test_rewards_are_those_on_its_own_problems(world: Callable[..., World], mode: str) -> None:
    """In status and history; a public step has none, wherever its update comes."""
    one = world(method=PubSwap(period=2, mode=mode))
    one.live(recorder(one))
    run = one.coordinator.run
    found, status = read(one.state / HISTORY, run.id, RoundFigures), read_status(one.state, run.id)
    public = [
        public_step_number(run.settings, step) is not None for step in update_order(run.settings)
    ]
    assert sum(public) == 2
    for each in found:
        assert [reward is None for reward in each.rewards] == public
        assert each.reward == fmean(reward for reward in each.rewards if reward is not None)
        assert (each.problems, each.prompts_per_step) == (digest_of(b"its problems"), 2)
    assert status is not None and status.rewards == found[-1].rewards


def test_a_public_step_of_more_prompts_than_the_run_s_is_refused(
    world: Callable[..., World],
) -> None:
    """The organisation has not agreed to that many responses, so nothing is sent."""
    one = world(grpo={"prompts_per_step": 2})
    with pytest.raises(InvalidProblems, match="responses to 3 prompts in a public step"):
        one.live()
    assert one.coordinator.sent == 0


@pytest.mark.parametrize("field", ["id", "prompt", "answer", "verifier"])
def test_a_prompt_that_is_not_in_the_approved_public_set_is_refused(
    world: Callable[..., World], field: str
) -> None:
    """The organisation has downloaded the set, whose digest it approved, so nothing is sent."""
    one = world()
    one.public = [each.model_copy(update={field: "x"}) for each in one.coordinator.problems]
    with pytest.raises(InvalidProblems, match="not number"):
        one.live()
    assert one.coordinator.sent == 0


def test_past_the_deadline_every_process_makes_one_step(world: Callable[..., World]) -> None:
    """It is saved before the process ends with status 75, and the adapters stay the same."""
    undisturbed, hurried = world(), world()
    undisturbed.live()
    hurried.end = 0.0
    for made in range(1, ROUNDS * STEPS):
        with pytest.raises(SystemExit) as ended, until_stopped():
            hurried.live()
        assert ended.value.code == 75
        checkpoint = Journal(
            hurried.state, JournalOwner.of(hurried.coordinator.run, "a")
        ).checkpoint()
        assert checkpoint is not None
        assert (checkpoint.key.round - 1) * STEPS + len(checkpoint.steps) == made
        # After a round's last step, the adapter is handed in first.
        assert len(hurried.coordinator.updates) == made // STEPS
    hurried.live()
    assert hurried.adapters() == undisturbed.adapters()


def test_a_daemon_past_its_deadline_asks_for_no_more_work(world: Callable[..., World]) -> None:
    """After the member's own last step it hands in first, even if the run has more steps."""
    one = world(method="fedavg")
    one.limits, one.end = RoundLimits(steps=3), time.monotonic() + 3600
    assert worked(one, training(one)) == [0, 0]
    assert one.coordinator.updates[1].metrics.steps == 3
    hurried = world(method="fedavg")
    hurried.limits, hurried.end = RoundLimits(steps=1), 0.0
    with pytest.raises(SystemExit) as ended, until_stopped():
        worked(hurried, training(hurried))
    assert ended.value.code == 75
    assert hurried.coordinator.updates[1].metrics.steps == 1


@pytest.mark.full
@pytest.mark.parametrize("method", [PubSwap(), PIPELINED], ids=["synchronous", "pipelined"])
def test_a_process_may_be_killed_at_any_point(world: Callable[..., World], method: PubSwap) -> None:
    """After one kill, at every 47th point, the next process hands in the same adapters."""
    undisturbed = world(method=method)
    undisturbed.points.passed = 0
    undisturbed.live()
    total = undisturbed.points.passed
    assert total > 100
    for point in range(1, total + 1, 47):
        killed = world(method=method)
        killed.points.remaining = point
        with pytest.raises(Killed):
            killed.live()
        killed.points.remaining = float("inf")
        killed.live()
        assert killed.adapters() == undisturbed.adapters(), f"point {point}"


SECONDS = 0.4


class SlowEngine(TransformersEngine):
    """An engine that takes at least SECONDS to sample."""

    def generate(self, *args: Any, **kwargs: Any) -> list[list[Response]]:
        time.sleep(SECONDS)
        return super().generate(*args, **kwargs)


def waits(one: World) -> dict[str, list[StepMetrics]]:
    """Run a client whose peer answers a while later; returns the metrics of its public steps by
    kind.
    """
    found: dict[str, list[StepMetrics]] = {"waiting": [], "overtaken": []}
    api, due = one.coordinator, 0.0
    submit, exchanged = api.submit_responses, api.exchanged

    def submitted(*args: Any) -> Receipt:
        nonlocal due
        receipt = submit(*args)
        due = time.monotonic() + SECONDS
        return receipt

    def answered(*args: Any, **kwargs: Any) -> bytes:
        time.sleep(max(0.0, due - time.monotonic()))
        return exchanged(*args, **kwargs)

    class Told(LogLines):
        def step(self, report: StepReport) -> None:
            if report.public:
                found["overtaken" if report.metrics.staleness else "waiting"].append(report.metrics)

    api.submit_responses, api.exchanged = submitted, answered  # type: ignore[method-assign]
    one.live(Told())
    return found


def test_a_pipelined_client_works_while_a_slow_peer_answers(world: Callable[..., World]) -> None:
    """An overtaken public step waits for nobody; the others wait for the peer."""
    pipelined, waiting = waits(world(SlowEngine, method=PIPELINED)), waits(world())
    assert [len(pipelined[kind]) for kind in ("overtaken", "waiting")] == [ROUNDS, ROUNDS]
    assert [len(waiting[kind]) for kind in ("overtaken", "waiting")] == [0, 2 * ROUNDS]
    idle, busy = (
        sum(step.waited for kind in found.values() for step in kind)
        for found in (waiting, pipelined)
    )
    assert idle > 0.9 * SECONDS * 2 * ROUNDS
    assert sum(step.waited for step in pipelined["overtaken"]) < 0.1 * idle
    assert busy < 0.7 * idle
    assert {step.staleness for step in pipelined["overtaken"]} == {1}


def test_a_pipelined_client_sends_and_trains_the_same_steps(world: Callable[..., World]) -> None:
    """Each public step is sent once, sampled before the private step that overtakes it."""
    pipelined, waiting = world(method=PIPELINED), world()
    pipelined.live()
    waiting.live()
    assert pipelined.coordinator.sent == len(pipelined.coordinator.submitted) == 2 * ROUNDS
    assert pipelined.trained_on.keys() == waiting.trained_on.keys()
    first = [one.coordinator.submitted[1, 1] for one in (pipelined, waiting)]
    assert first[0] == first[1]
    last = [one.coordinator.submitted[1, 2] for one in (pipelined, waiting)]
    assert last[0] != last[1]
    assert pipelined.adapters() != waiting.adapters()


def test_an_overtaken_step_that_closed_without_us_trains_on_our_own(
    world: Callable[..., World],
) -> None:
    """Whether the client learns of it when it sends its responses or when it fetches its groups."""
    for how in ("late", "closed"):
        one = world(method=PIPELINED)
        setattr(one.coordinator, how, True)
        one.coordinator.closed = True
        one.live()
        for (round_, public_step), sent in one.coordinator.submitted.items():
            assert one.trained_on[round_, 2 * public_step] == {digest_of(sent)}


def test_the_responses_of_an_overtaken_step_may_be_lost(world: Callable[..., World]) -> None:
    """The coordinator has them, so a client whose file is damaged trains on the coordinator's
    copy.
    """
    killed = world(Capricious, method=PIPELINED)
    call = killed.coordinator.exchanged
    killed.coordinator.exchanged = _dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        killed.live()
    killed.coordinator.exchanged = call  # type: ignore[method-assign]
    (killed.state / "exchange-own.safetensors").write_bytes(b"rotten")
    killed.live()
    assert killed.coordinator.mismatches == 0
    assert killed.coordinator.sent == 2 * ROUNDS
    assert sorted(killed.coordinator.updates) == [1, 2]


class Capricious(TransformersEngine):
    """A nondeterministic engine, as some fast ones are."""

    draws = itertools.count()

    def generate(
        self, prompts: Prompts, sampling: SamplingParameters, first: int = 0
    ) -> list[list[Response]]:
        return super().generate(
            prompts, dataclasses.replace(sampling, seed=next(self.draws)), first
        )


def test_responses_are_sent_once_whatever_the_engine_samples(world: Callable[..., World]) -> None:
    """With a nondeterministic engine, a restart still sends and trains on the same responses."""
    killed = world(Capricious)
    assert kill_again_and_again(killed) > 5
    assert killed.coordinator.mismatches == 0
    assert {len(digests) for digests in killed.trained_on.values()} == {1}


@pytest.mark.parametrize("how", ["late", "closed"])
def test_training_on_our_own_stays_decided(world: Callable[..., World], how: str) -> None:
    """An exchange that closed without us is not asked again after a restart."""
    killed = world(Capricious)
    setattr(killed.coordinator, how, True)
    updates = killed.trained_on
    killed.points.remaining = float("inf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(killed.points, "hit", lambda: _die_when(bool(updates)))
        with pytest.raises(Killed):
            killed.live()
    setattr(killed.coordinator, how, False)  # would answer differently if asked again
    asked = len(killed.coordinator.submitted)
    killed.live()
    assert asked == 1
    assert {len(digests) for digests in updates.values()} == {1}
    own = digest_of(killed.coordinator.submitted[1, 1])
    assert updates[1, 2] == {own}


def _die_when(reached: bool) -> None:
    if reached:
        raise Killed


def test_a_lost_file_of_own_responses_does_not_end_the_client(world: Callable[..., World]) -> None:
    """The coordinator refuses responses that differ; the client uses those of the exchange."""
    killed = world(Capricious)
    call = killed.coordinator.exchanged
    killed.coordinator.exchanged = _dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        killed.live()
    killed.coordinator.exchanged = call  # type: ignore[method-assign]
    (killed.state / "exchange-own.safetensors").write_bytes(b"rotten")
    killed.live()
    assert killed.coordinator.mismatches == 1
    assert sorted(killed.coordinator.updates) == [1, 2]


def _dying(*_: Any, **__: Any) -> bytes:
    raise Killed


def test_a_finished_round_is_handed_in_without_training_again(
    world: Callable[..., World],
) -> None:
    """Killed during the upload, the next process sends the same adapter and summary."""
    killed = world(method="fedavg")
    killed.coordinator.submit_update = _dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        killed.live()
    (sent,) = [digest for digest, data in killed.coordinator.blobs.items()][1:]
    del killed.coordinator.submit_update  # type: ignore[attr-defined]
    trainer = killed.trainer

    def idle(*given: Any) -> LocalTrainer:
        made = trainer(*given)
        begun = made.private_step

        def private_step(*args: Any) -> Any:
            assert made.round == 2, "round 1 was trained again"
            return begun(*args)

        made.private_step = private_step  # type: ignore[method-assign]
        return made

    killed.trainer = idle
    killed.live()
    assert killed.coordinator.updates[1].adapter == sent
    assert killed.coordinator.updates[1].metrics.steps == STEPS


def test_a_damaged_checkpoint_costs_its_round_only(world: Callable[..., World]) -> None:
    """The round starts again, with the same result."""
    undisturbed, killed = world(method="fedavg"), world(method="fedavg")
    undisturbed.live()
    killed.coordinator.submit_update = _dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        killed.live()
    del killed.coordinator.submit_update  # type: ignore[attr-defined]
    path = killed.state / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    killed.live()
    assert killed.adapters() == undisturbed.adapters()
    assert path.with_name(path.name + ".damaged").exists()


def test_a_late_update_is_late_in_the_history(world: Callable[..., World]) -> None:
    """An update that was not used has no part in what an audit examines."""
    in_time, other = world(method="fedavg"), world(method="fedavg")
    in_time.live(recorder(in_time))
    assert [each["late"] for each in rounds_of(in_time)] == [False, False]
    submit = other.coordinator.submit_update

    def late(*args: Any) -> Receipt:
        return submit(*args).model_copy(update={"status": ReceiptStatus.LATE})

    other.coordinator.submit_update = late  # type: ignore[method-assign]
    other.live(recorder(other))
    assert [each["late"] for each in rounds_of(other)] == [True, True]


def test_a_restored_trainer_has_the_snapshot_s_bits(world: Callable[..., World]) -> None:
    """Factors and AdamW's state survive a snapshot, a restore into a new trainer and another
    snapshot.
    """
    first, second = world().trainer(), world().trainer()
    adapter = initial_adapter(first.policy.card.layout, 3)
    for trainer in (first, second):
        trainer.begin_round(1, adapter)
    first.private_step(1)
    taken = first.snapshot()
    second.restore(taken)
    again = second.snapshot()
    assert taken.optimizer.keys() == {
        f"{key}/{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in taken.adapter
    }
    for before, after in ((taken.adapter, again.adapter), (taken.optimizer, again.optimizer)):
        assert before.keys() == after.keys()
        for name, array in before.items():
            assert array.tobytes() == after[name].tobytes()
            assert array.shape == after[name].shape


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HelloNeeded, "Leaving round 1 until the coordinator has our hello."),
        (RefusedByPolicy, "Leaving round 1 for now: It may not."),
        (WrongState, "Round 1 goes on without us: It may not."),
        (IdempotencyMismatch, "Round 1 goes on without us: It may not."),
    ],
)
def test_a_round_that_may_not_be_trained_now_does_not_end_the_daemon(
    world: Callable[..., World],
    caplog: pytest.LogCaptureFixture,
    error: type[PubSwapError],
    said: str,
) -> None:
    """It says why, and asks for the next task."""
    one = world(method="fedavg")

    def refused(*_: Any) -> bytes:
        raise error("It may not.")

    task = training(one)
    one.coordinator.blob = refused  # type: ignore[method-assign]
    worked(one, task)
    assert said in caplog.text
    assert not one.coordinator.updates


@pytest.mark.parametrize("error", [RoundClosed, UnknownBlob, IdempotencyMismatch])
def test_a_round_that_closed_without_us_does_not_end_the_daemon(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture, error: type[PubSwapError]
) -> None:
    """Nor does a restarted round whose uploads are gone: the daemon logs it and asks for a task.

    In the history it did not count, except if the coordinator has an earlier update of ours.
    """
    one = world(method="fedavg")

    submit = one.coordinator.submit_update

    def closed(*_: Any) -> Receipt:
        raise error("It is closed.")

    one.coordinator.submit_update = closed  # type: ignore[method-assign]
    worked(one, training(one))
    assert "Round 1 goes on without us: It is closed." in caplog.text
    assert [each["late"] for each in rounds_of(one)] == [error is not IdempotencyMismatch]
    one.coordinator.submit_update = submit  # type: ignore[method-assign]
    worked(one, training(one))  # the round was opened again
    assert [each["late"] for each in rounds_of(one)] == [False]


def test_a_round_before_the_first_is_not_trained(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    """It needs no approval and counts for no day, so a coordinator could repeat it forever."""
    one = world(method="fedavg")
    worked(one, training(one, 0))
    assert not one.coordinator.updates
    assert "Round 0 goes on without us: The coordinator gave a training task" in caplog.text


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of an idle daemon."""
    pauses: list[float] = []
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(retry, "time", clock)
    return pauses


def test_a_daemon_that_has_nothing_to_do_does_not_ask_without_a_pause(
    world: Callable[..., World], paused: list[float]
) -> None:
    """Each request is a ledger entry, so a coordinator that answers at once would fill the disk,
    whatever its answer.
    """
    train = Task(kind=TaskKind.TRAIN, state=RunState.TRAINING, round=1)  # without an adapter
    other, waits = (train.model_copy(update=one) for one in ({"round": 2}, {"kind": TaskKind.WAIT}))
    evaluate = train.model_copy(update={"kind": TaskKind.EVALUATE})
    worked(world(method="fedavg"), train, other, waits, evaluate, train, waits, train)
    assert paused == [IDLE_SECONDS] * 4


def test_only_a_daemon_that_waits_asks_for_a_late_answer(
    world: Callable[..., World], paused: list[float]
) -> None:
    """At first and after a round it asks at once, to say what it waits for."""
    train = Task(kind=TaskKind.TRAIN, state=RunState.TRAINING, round=1)  # without an adapter
    waits = train.model_copy(update={"kind": TaskKind.WAIT})
    asked = worked(world(method="fedavg"), waits, waits, train, waits)
    assert asked == [0.0, LONG_POLL_SECONDS, LONG_POLL_SECONDS, 0.0, LONG_POLL_SECONDS]


def test_new_rounds_need_no_pause_but_repeated_ones_do(
    world: Callable[..., World], paused: list[float]
) -> None:
    """A round that was already trained leaves no work, so the daemon pauses."""
    one = world(method="fedavg", local_steps=1)
    worked(one, *(training(one, round_) for round_ in range(1, 6)))
    assert paused == []
    worked(one, *[training(one, 5)] * 6)
    assert paused == [IDLE_SECONDS] * 3


@pytest.mark.parametrize("another", [{"round": 2}, {"public_step": 7}, {"prompts": []}])
def test_prompts_of_another_public_step_are_not_answered(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture, another: dict[str, Any]
) -> None:
    """A policy counts rounds by the public steps whose responses were sent."""
    one = world()
    given = one.coordinator.public_step_prompts("r1", 1, 1).model_copy(update=another)
    one.coordinator.public_step_prompts = lambda *_: given  # type: ignore[method-assign]
    worked(one, training(one))
    assert "asked for public step 1 of round 1, and answered with another or none" in caplog.text
    assert not one.coordinator.sent


def test_a_cancelled_run_ends_the_daemon_after_the_step_under_way(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever request first reports the cancellation, no further step is begun and nothing is
    sent.
    """
    one = world(method="fedavg", local_steps=4)
    beats: list[Progress] = []

    def cancelled(_: str, body: Progress) -> None:
        beats.append(body)
        raise RunCancelled

    one.coordinator.heartbeat = cancelled  # type: ignore[method-assign]
    with caplog.at_level("INFO"):
        worked(one, training(one), state=RunState.CANCELLED)
    assert [beat.step for beat in beats] == [1]
    assert not one.coordinator.updates
    assert "The run is cancelled." in caplog.text


def test_a_private_set_of_dead_prompts_is_logged(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    """Each step uses up its budget, has no group with variance, and logs so."""
    one = world(method="fedavg", grpo={"resample": 64})
    trainer, told = one.trainer, list[StepMetrics]()

    def useless(*given: Any) -> LocalTrainer:
        made = trainer(*given)
        made.scorer = lambda cases: [0.0] * len(cases)
        return made

    class Told(LogLines):
        def step(self, report: StepReport) -> None:
            told.append(report.metrics)

    one.trainer = useless
    one.live(Told())
    assert {(m.zero_variance_share, m.prompts_sampled, m.groups_replaced) for m in told} == {
        (1.0, 8, 0)
    }
    assert "Private step 1 taught nothing: each of 8 prompts had equal rewards" in caplog.text


def test_a_round_that_starts_again_hands_in_its_new_result(
    world: Callable[..., World],
) -> None:
    """After a rollback in the middle of the next round, an update that was kept for sending is not
    reused.
    """
    one, fresh = world(wire=HALF), world(wire=HALF)

    class EndsInTheNext(LogLines):
        def step(self, report: StepReport) -> None:
            if report.round == 2:
                raise Killed

    with pytest.raises(Killed):
        one.live(EndsInTheNext())
    before = one.coordinator.updates.pop(1)
    one.coordinator.submitted.clear()
    for each in (one, fresh):
        each.coordinator.peer.reverse()  # peers give others this time
        each.live()
    assert one.adapters() == fresh.adapters()
    assert one.coordinator.updates[1].adapter != before.adapter


@pytest.mark.parametrize("last", [3, STEPS])
def test_a_rollback_to_the_same_adapter_restarts_the_round(
    world: Callable[..., World], last: int
) -> None:
    """It restarts from its first public step, for which peers wait, even if it was complete."""
    one, fresh = world(wire=HALF), world(wire=HALF)

    class Ends(Recorder):
        def doing(self, what: str) -> None:
            if self._status.step == last:
                raise Killed

    one.coordinator.submit_update = _dying  # type: ignore[method-assign]
    connection: Any = SimpleNamespace(sent=1, received=2)
    with pytest.raises(Killed):
        one.live(Ends(one.state, one.coordinator.run, connection, digest_of(b""), 2))
    del one.coordinator.submit_update  # type: ignore[attr-defined]
    one.coordinator.submitted.clear()
    for each in (one, fresh):
        each.coordinator.peer.reverse()  # peers give others this time
        each.coordinator.rollbacks = 1
        each.live(recorder(each))
    assert one.coordinator.submitted.keys() == fresh.coordinator.submitted.keys()
    assert one.adapters() == fresh.adapters()
    assert rounds_of(one)[-ROUNDS:] == rounds_of(fresh)


@pytest.mark.parametrize("rollbacks", [1, 0], ids=["rolled back", "restored"])
@pytest.mark.parametrize(
    "grpo", [{"optimizer_state": "keep"}, {"resample": 2}], ids=["optimizer", "prompts"]
)
def test_a_rollback_finds_a_client_the_same_whether_it_was_killed_or_not(
    world: Callable[..., World], grpo: dict[str, Any], rollbacks: int
) -> None:
    """Prompts drawn before stay used, and the optimizer starts anew.

    So it is if the coordinator was restored from a backup, which reports no rollback.
    """
    going, killed, fresh = (world(method="fedavg", grpo=grpo) for _ in range(3))
    trainer = going.trainer(None)
    going.trainer = lambda _: trainer
    for each in (going, killed):
        each.live()
        each.coordinator.updates.clear()
    for each in (going, killed, fresh):
        each.coordinator.rollbacks = rollbacks
        each.live()
    assert going.adapters() == killed.adapters()
    assert (going.adapters() == fresh.adapters()) is ("optimizer_state" in grpo)


def test_a_public_step_has_the_exchange_s_number(world: Callable[..., World]) -> None:
    """As in the coordinator's words, whichever local step it is."""
    heard: list[str] = []

    class Listening(LogLines):
        def doing(self, what: str) -> None:
            heard.append(what)

    one = world()
    one.live(Listening())
    told = {what.partition(":")[0] for what in heard if what.startswith("public step")}
    numbers = {public_step for _, public_step in one.coordinator.submitted}
    assert told == {f"public step {number}" for number in numbers}


def test_responses_to_other_prompts_are_not_sent_again(world: Callable[..., World]) -> None:
    """After a rollback a public step may ask other prompts."""
    one = world()
    one.coordinator.exchanged = _dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        one.live()
    del one.coordinator.exchanged  # type: ignore[attr-defined]
    asked = one.coordinator.public_step_prompts

    def others(*args: Any) -> PublicStepPrompts:
        found = asked(*args)
        return found.model_copy(update={"prompts": found.prompts[1:]})

    one.coordinator.public_step_prompts = others  # type: ignore[method-assign]
    one.coordinator.late = True
    one.coordinator.submitted.clear()
    one.live()
    assert one.coordinator.updates.keys() == {1, 2}
