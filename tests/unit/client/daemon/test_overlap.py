"""Private steps sampled one update ahead: bitwise equal to a plain loop, in a thread or not."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pubswap_client.daemon.own_settings import RoundLimits
from pubswap_client.daemon.reporters import LogLines, StepReport
from pubswap_client.policy.groups import Group, collate
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import (
    RolloutEngine,
    SamplingParameters,
    TransformersEngine,
)
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import LocalTrainer, score_groups
from pubswap_client.training.update import update
from pubswap_protocol.draws import seed_for
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.schedule import private_position, private_prompts
from pubswap_protocol.settings import RunSettings, SwapSettings
from pubswap_protocol.tensors.adapter import Adapter, encode_adapter, initial_adapter
from support.client.one_client import STEPS, Killed, World

OVERLAP = {"overlap": 1}


class OverlappedSteps(LogLines):
    """Records the metrics of the reported steps."""

    def __init__(self) -> None:
        self.metrics: list[StepMetrics] = []

    def step(self, report: StepReport) -> None:
        self.metrics.append(report.metrics)


def plain_round(
    load: Callable[[], Policy], settings: RunSettings, problems: Sequence[Problem], scorer: Any
) -> Adapter:
    """Round 1 of FedAvg, in which step s + 1 is sampled from the factors at the start of step s."""
    torch.set_num_threads(1)
    trained, sampled, grpo = load(), load(), settings.grpo
    trained.load_adapter(initial_adapter(trained.card.layout, settings.seed))
    optimizer = torch.optim.AdamW(
        trained.trainable(), lr=grpo.learning_rate, weight_decay=grpo.weight_decay
    )

    def sample(step: int, adapter: Adapter) -> list[Group]:
        sampled.load_adapter(adapter)
        first = private_position(settings, 1, step)
        chosen = [
            problems[index]
            for index in private_prompts(settings, "a", len(problems), first, grpo.prompts_per_step)
        ]
        prompts = [sampled.encode(problem.prompt) for problem in chosen]
        sampling = SamplingParameters(
            grpo.responses_per_prompt,
            grpo.max_response_tokens,
            grpo.temperature,
            seed_for(settings.seed, "rollout", "a", 1, step),
        )
        groups = TransformersEngine(sampled).generate(prompts, sampling)
        rewards = score_groups(scorer, sampled.decode, chosen, groups)
        return [Group(*group) for group in zip(prompts, groups, rewards, strict=True)]

    batches = {1: sample(1, trained.adapter())}
    for step in range(1, settings.local_steps + 1):
        if step < settings.local_steps:
            batches[step + 1] = sample(step + 1, trained.adapter())
        batch = collate(batches[step], grpo.advantage_epsilon)
        update(trained, optimizer, batch, settings, [])
    return trained.adapter()


class Beside(TransformersEngine):
    """A deterministic engine with its own factors, which samples while the policy is trained."""

    load: Callable[[], Policy]
    threads: list[str]
    updating: threading.Event | None = None

    def __init__(self, policy: Policy) -> None:
        super().__init__(type(self).load())
        self.trained, self.held = policy, False

    @contextmanager
    def holding(self) -> Iterator[bool]:
        self.policy.load_adapter(self.trained.adapter())
        self.held = True
        try:
            yield True
        finally:
            self.held = False

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        if not self.held:
            self.policy.load_adapter(self.trained.adapter())
        elif self.updating is not None:
            assert self.updating.wait(60), "the update waited for the sampling"
        self.threads.append(threading.current_thread().name)
        return super().generate(*args, **kwargs)


@pytest.fixture
def load(
    tiny_qwen3: Path, card_of: Callable[[Path], ModelCard], run_settings: RunSettings
) -> Callable[[], Policy]:
    """A function that loads another copy of the policy."""
    return lambda: Policy.load(tiny_qwen3, card_of(tiny_qwen3), run_settings, device="cpu")


@pytest.fixture
def beside(load: Callable[[], Policy]) -> type[Beside]:
    """A fresh class of engine for this test, which samples beside the trainer."""
    return type("BesideOfATest", (Beside,), {"load": staticmethod(load), "threads": []})


def adapter_of(one: World) -> bytes:
    """The adapter handed in after round 1."""
    return one.coordinator.blobs[one.coordinator.updates[1].adapter]


def test_overlap_is_bitwise_equal_to_a_loop_that_samples_one_step_ahead(
    world: Callable[..., World],
    load: Callable[[], Policy],
    beside: type[Beside],
    problems: list[Problem],
    even_scorer: Any,
) -> None:
    """The same whether the engine samples before or during the update, but different without
    overlap.
    """
    engines: list[Callable[[Policy], RolloutEngine]] = [TransformersEngine, beside]
    lives = [world(engine, method="fedavg", grpo=OVERLAP) for engine in engines]
    for one in lives:
        told = OverlappedSteps()
        one.live(told)
        assert [m.staleness for m in told.metrics] == 2 * [0, *[1] * (STEPS - 1)]
        assert max(m.mismatch for m in told.metrics if not m.staleness) < 1e-5
        assert min(m.mismatch for m in told.metrics if m.staleness) > 1e-4
    settings = lives[0].coordinator.run.settings
    expected = plain_round(load, settings, problems, even_scorer)
    layout = lives[0].coordinator.run.model.layout
    assert [adapter_of(one) for one in lives] == 2 * [encode_adapter(layout, expected)]
    on_policy = world(method="fedavg")
    on_policy.live()
    assert adapter_of(on_policy) != adapter_of(lives[0])


def test_an_engine_beside_the_trainer_samples_while_it_updates(
    world: Callable[..., World], beside: type[Beside], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine waits for the update to begin, so it would hang otherwise."""
    one = world(beside, method="fedavg", grpo=OVERLAP)
    beside.updating = threading.Event()
    update_on = LocalTrainer.update_policy

    def updating(self: LocalTrainer, *args: Any, **kwargs: Any) -> Any:
        assert beside.updating is not None
        beside.updating.set()
        return update_on(self, *args, **kwargs)

    monkeypatch.setattr(LocalTrainer, "update_policy", updating)
    one.live()
    assert beside.threads == 2 * ["MainThread", *["rollout"] * (STEPS - 1)]


def test_nothing_is_sampled_beyond_the_member_s_last_step(
    world: Callable[..., World], beside: type[Beside]
) -> None:
    """With a step limit of its own, the hand-in used to wait for responses that were never trained
    on.
    """
    one = world(beside, method="fedavg", grpo=OVERLAP)
    one.limits = RoundLimits(steps=2)
    one.live()
    assert beside.threads == 2 * ["MainThread", "rollout"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"method": "fedavg"}, id="fedavg"),
        pytest.param({"swap": SwapSettings(period=3)}, id="pubswap", marks=pytest.mark.full),
        pytest.param(
            {"swap": SwapSettings(mode="pipelined")}, id="pipelined", marks=pytest.mark.full
        ),
    ],
)
def test_a_client_that_dies_in_an_overlap_hands_in_the_same(
    world: Callable[..., World], beside: type[Beside], changes: dict[str, Any]
) -> None:
    """It is killed at every fifth point; the batch sampled ahead is part of the step before it."""
    undisturbed = world(beside, grpo=OVERLAP, **changes)
    undisturbed.points.passed = 0
    undisturbed.live()
    total = undisturbed.points.passed
    killed = world(beside, grpo=OVERLAP, **changes)
    for point in range(5, total + 5, 5):
        killed.points.remaining = point
        try:
            killed.live()
        except Killed:
            continue
        break
    killed.points.remaining = float("inf")
    killed.live()
    assert killed.adapters() == undisturbed.adapters()
    assert killed.coordinator.submitted == undisturbed.coordinator.submitted


def test_what_fails_in_the_sampling_thread_is_raised(
    world: Callable[..., World], beside: type[Beside], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step before it is not reported as done."""
    told = OverlappedSteps()

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.held:
            raise RuntimeError("no engine")
        return TransformersEngine.generate(self, *args, **kwargs)

    monkeypatch.setattr(beside, "generate", broken)
    with pytest.raises(RuntimeError, match="no engine"):
        world(beside, method="fedavg", grpo=OVERLAP).live(told)
    assert not told.metrics
