"""A client's rounds when its process dies at any point: the bits, the bytes sent, the summary."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pubswap_client import files
from pubswap_client.checkpoint import Owner
from pubswap_client.progress import ProgressStore
from pubswap_client.reporting import LogLines
from pubswap_client.round import LocalRound
from pubswap_client.training.budget import TokenBudget
from pubswap_client.training.policy import Policy, set_threads
from pubswap_client.training.rollout import TransformersEngine
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.adapter import digest_of, encode_adapter, initial_adapter
from pubswap_protocol.errors import IdempotencyMismatch, RoundClosed
from pubswap_protocol.messages import (
    Progress,
    PublicPrompt,
    Receipt,
    ReceiptStatus,
    RunState,
    RunView,
    SubmitUpdate,
    SwapPrompts,
)
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.responses import Response, ResponseRules, decode_responses, encode_responses
from pubswap_protocol.settings import RunSettings

ROUNDS, STEPS = 2, 4
PUBLIC = (0, 1, 2)
Engine = Callable[[Policy], Any]


class Killed(BaseException):
    """The process is gone: nothing handles this."""


class Points:
    """Counts the points a life passes, and ends it at one of them."""

    def __init__(self) -> None:
        self.left: float = float("inf")
        self.passed = 0

    def hit(self) -> None:
        """One more point."""
        self.passed += 1
        self.left -= 1
        if self.left <= 0:
            raise Killed

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with a point before it and one after it."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.hit()
            found = call(*args, **kwargs)
            self.hit()
            return found

        return wrapped


class FakeCoordinator:
    """Answers a single client as the coordinator does, with one peer in each exchange."""

    def __init__(self, run: RunView, problems: Sequence[Problem], peer: list[list[Response]]):
        self.run = run
        self.problems = problems
        self.peer = peer
        self.blobs: dict[str, bytes] = {}
        self.submitted: dict[tuple[int, int], bytes] = {}
        self.updates: dict[int, SubmitUpdate] = {}
        self.mismatches = 0
        self.late = False  # whether exchanges are closed when our responses come
        self.closed = False  # whether they close while we wait

    def blob(self, run: str, digest: str) -> bytes:
        return self.blobs[digest]

    def put_blob(self, run: str, data: bytes) -> str:
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def swap_prompts(self, run: str, round_: int, swap: int) -> SwapPrompts:
        prompts = [PublicPrompt(index=i, problem=self.problems[i]) for i in PUBLIC]
        return SwapPrompts(round=round_, swap=swap, prompts=prompts)

    def submit_responses(self, run: str, round_: int, swap: int, data: bytes) -> Receipt:
        if self.submitted.setdefault((round_, swap), data) != data:
            self.mismatches += 1
            raise IdempotencyMismatch
        status = ReceiptStatus.LATE if self.late else ReceiptStatus.ACCEPTED
        return Receipt(status=status, digest=digest_of(data))

    def exchanged(self, run: str, round_: int, swap: int) -> bytes:
        if self.closed:
            raise RoundClosed
        grpo = self.run.settings.grpo
        rules = ResponseRules(
            PUBLIC, grpo.responses_per_prompt, grpo.max_response_tokens, self.run.model.vocabulary
        )
        own = decode_responses(self.submitted[round_, swap], rules)
        mixed = [mine[:2] + theirs[:2] for mine, theirs in zip(own, self.peer, strict=True)]
        return encode_responses(PUBLIC, mixed)

    def submit_update(self, run: str, round_: int, body: SubmitUpdate) -> Receipt:
        assert body.adapter in self.blobs
        if self.updates.setdefault(round_, body) != body:
            self.mismatches += 1
            raise IdempotencyMismatch
        return Receipt(status=ReceiptStatus.ACCEPTED, digest=body.adapter)

    def heartbeat(self, run: str, body: Progress) -> None:
        pass


CALLS = (
    *("blob", "swap_prompts", "submit_responses", "exchanged"),
    *("put_blob", "submit_update", "heartbeat"),
)


@dataclasses.dataclass
class World:
    """What outlives a process: the coordinator and the state folder. And how a process starts."""

    coordinator: FakeCoordinator
    state: Path
    trainer: Callable[[], LocalTrainer]
    points: Points
    trained_on: dict[tuple[int, int], set[str]]

    def live(self) -> None:
        """One process: a new trainer and store, then every round that is not handed in."""
        trainer, run = self.trainer(), self.coordinator.run
        store = ProgressStore(self.state, Owner.of(run, "a"))
        self._watch(trainer)
        layout = run.model.layout
        start = self.coordinator.put_blob(
            run.id, encode_adapter(layout, initial_adapter(layout, run.settings.seed))
        )
        for number in range(1, ROUNDS + 1):
            if number not in self.coordinator.updates:
                local: Any = LocalRound
                one = local(self.coordinator, run, trainer, store, LogLines(), number, start)
                one.train()
                one.hand_in(examples=8)
            start = self.coordinator.updates[number].adapter

    def _watch(self, trainer: LocalTrainer) -> None:
        step_on = trainer.public_step

        def public_step(step: int, problems: Any, groups: Any) -> Any:
            seen = self.trained_on.setdefault((trainer.round, step), set())
            seen.add(digest_of(encode_responses(PUBLIC, groups)))
            self.points.hit()
            return step_on(step, problems, groups)

        trainer.public_step = public_step  # type: ignore[method-assign]
        trainer.engine.generate = self.points.around(trainer.engine.generate)  # type: ignore[method-assign]

    def adapters(self) -> list[bytes]:
        """What was handed in, round by round."""
        updates = [self.coordinator.updates[number] for number in range(1, ROUNDS + 1)]
        return [self.coordinator.blobs[update.adapter] for update in updates]


@pytest.fixture
def world(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_qwen3: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    problems: list[Problem],
    even_scorer: Any,
    make_responses: Callable[..., list[Response]],
) -> Callable[..., World]:
    """A function that makes a world with some settings replaced, and an engine."""
    set_threads(1)
    card = card_of(tiny_qwen3)
    numbers = itertools.count()
    points = Points()

    def fill(descriptor: int, data: memoryview, write: Any = files.fill) -> None:
        write(descriptor, data[: len(data) // 2])
        points.hit()
        write(descriptor, data[len(data) // 2 :])

    monkeypatch.setattr(files, "fill", fill)
    monkeypatch.setattr(Path, "replace", points.around(Path.replace))

    def make(engine: Engine = TransformersEngine, **changes: Any) -> World:
        grpo = run_settings.grpo.model_copy(update=changes.pop("grpo", {}))
        settings = run_settings.model_copy(
            update={"grpo": grpo, "local_steps": STEPS, "rounds": ROUNDS, **changes}
        )
        run = RunView(
            id="r1",
            name="run",
            state=RunState.TRAINING,
            paused=False,
            round=1,
            settings=settings,
            model=card,
            created_at="2025-01-01T00:00:00Z",
        )
        peer = [make_responses([4, 5, 6, 7], seed, donated=range(4)) for seed in PUBLIC]
        coordinator = FakeCoordinator(run, problems, peer)
        for name in CALLS:
            setattr(coordinator, name, points.around(getattr(coordinator, name)))

        def trainer() -> LocalTrainer:
            policy = Policy.load(tiny_qwen3, card, settings, device="cpu")
            budget = TokenBudget(1 << 20)
            return LocalTrainer(
                policy, engine(policy), settings, "a", problems, even_scorer, budget
            )

        return World(coordinator, tmp_path / f"{next(numbers)}", trainer, points, {})

    return make


def kill_again_and_again(world: World) -> int:
    """The first life ends at its first point, the second at its second, ...; how many ended."""
    for number in itertools.count(1):
        world.points.left = number
        try:
            world.live()
        except Killed:
            continue
        world.points.left = float("inf")
        return number - 1
    raise AssertionError


def steps_of(update: SubmitUpdate) -> dict[str, Any]:
    """What a submission says, but for the time that it took."""
    return update.model_dump(exclude={"metrics": {"seconds"}})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"grpo": {"optimizer_state": "keep"}},
        {"method": "fedprox"},
        {"method": "fedavg", "grpo": {"optimizer_state": "keep"}},
    ],
    ids=["pubswap", "pubswap keep", "fedprox", "fedavg keep"],
)
def test_a_client_that_dies_again_and_again_hands_in_the_same(
    world: Callable[..., World], changes: dict[str, Any]
) -> None:
    """Adapters, bytes sent and summaries are those of an undisturbed client, in every bit."""
    undisturbed, killed = world(**changes), world(**changes)
    undisturbed.live()
    assert kill_again_and_again(killed) > 5
    assert killed.adapters() == undisturbed.adapters()
    assert killed.coordinator.submitted == undisturbed.coordinator.submitted
    assert killed.coordinator.mismatches == 0
    for number, update in undisturbed.coordinator.updates.items():
        assert steps_of(killed.coordinator.updates[number]) == steps_of(update)


def test_any_point_of_a_life_can_be_its_last(world: Callable[..., World]) -> None:
    """Killed once, at every ninth point, the next process hands in the same adapters."""
    undisturbed = world()
    undisturbed.points.passed = 0
    undisturbed.live()
    total = undisturbed.points.passed
    assert total > 100
    for point in range(1, total + 1, 9):
        killed = world()
        killed.points.left = point
        with pytest.raises(Killed):
            killed.live()
        killed.points.left = float("inf")
        killed.live()
        assert killed.adapters() == undisturbed.adapters(), f"point {point}"


class Capricious(TransformersEngine):
    """An engine that never samples the same again, as some fast ones do."""

    draws = itertools.count()

    def generate(self, *args: Any, **kwargs: Any) -> list[list[Response]]:
        return super().generate(*args, **{**kwargs, "seed": next(self.draws)})


def test_responses_are_sent_once_whatever_the_engine_samples(world: Callable[..., World]) -> None:
    """With an engine that is not deterministic, a restart sends and trains on the very same."""
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
    killed.points.left = float("inf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(killed.points, "hit", lambda: _die_when(bool(updates)))
        with pytest.raises(Killed):
            killed.live()
    setattr(killed.coordinator, how, False)  # another answer, were it asked again
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
    """The coordinator refuses other responses than before; the client takes the exchange's."""
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


def _dying(*_: Any) -> bytes:
    raise Killed


def test_a_finished_round_is_handed_in_without_training_again(
    world: Callable[..., World],
) -> None:
    """Killed while it uploads, the next process sends the same adapter and the same summary."""
    killed = world(method="fedavg")
    killed.coordinator.submit_update = _dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        killed.live()
    (sent,) = [digest for digest, data in killed.coordinator.blobs.items()][1:]
    del killed.coordinator.submit_update  # type: ignore[attr-defined]
    trainer = killed.trainer

    def idle() -> LocalTrainer:
        made = trainer()
        begun = made.private_step

        def private_step(step: int) -> Any:
            assert made.round == 2, "round 1 was trained again"
            return begun(step)

        made.private_step = private_step  # type: ignore[method-assign]
        return made

    killed.trainer = idle
    killed.live()
    assert killed.coordinator.updates[1].adapter == sent
    assert killed.coordinator.updates[1].metrics.steps == STEPS


def test_a_damaged_checkpoint_costs_its_round_only(world: Callable[..., World]) -> None:
    """The round begins again, and ends as it would have."""
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


def test_a_restored_trainer_has_the_snapshot_s_bits(world: Callable[..., World]) -> None:
    """Factors and AdamW's state, taken, loaded into a new trainer and taken again, are equal."""
    first, second = world().trainer(), world().trainer()
    adapter = initial_adapter(first.policy.card.layout, 3)
    for trainer in (first, second):
        trainer.begin_round(1, adapter)
    first.private_step(1)
    taken = first.snapshot()
    second.restore(taken)
    again = second.snapshot()
    assert taken.optimizer.keys() == again.optimizer.keys() == taken.adapter.keys()
    for name in taken.adapter:
        assert np.array_equal(taken.adapter[name], again.adapter[name])
        assert taken.optimizer[name].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for key, array in taken.optimizer[name].items():
            assert array.tobytes() == again.optimizer[name][key].tobytes()
            assert array.shape == again.optimizer[name][key].shape
