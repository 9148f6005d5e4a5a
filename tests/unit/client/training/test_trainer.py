"""A client's local rounds: determinism, public steps, optimizer state and pass@1."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pubswap_client.daemon.evaluator import judge, mean_scores, pass_at_1
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.training.memory import TokenBudget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext
from pubswap_protocol.bounds import MAX_FACTOR, SMALLEST
from pubswap_protocol.errors import InvalidProblems, StaleAdapter
from pubswap_protocol.methods.method import PubSwap
from pubswap_protocol.model import ModelCard
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import GrpoSettings, RunSettings
from pubswap_protocol.tensors.adapter import Adapter, encode_adapter, initial_adapter
from pubswap_protocol.verifiers.confined.worker import Scored
from support.client.even import is_even

Scorer = Callable[[Sequence[tuple[str, Problem]]], list[float]]
MakeTrainer = Callable[..., LocalTrainer]


@pytest.fixture
def make_trainer(
    tiny_qwen3: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    problems: list[Problem],
    even_scorer: Scorer,
) -> MakeTrainer:
    """A function that makes a trainer with its own policy, as a new process would."""

    def make(
        client: str = "a", settings: RunSettings = run_settings, more: Sequence[Problem] = ()
    ) -> LocalTrainer:
        torch.set_num_threads(1)
        policy = Policy.load(tiny_qwen3, card_of(tiny_qwen3), settings, device="cpu")
        updates, engine = UpdateContext(policy, TokenBudget(60)), TransformersEngine(policy)
        return LocalTrainer(updates, engine, client, [*problems, *more], even_scorer)

    return make


def start(trainer: LocalTrainer) -> Adapter:
    return initial_adapter(trainer.policy.card.layout, trainer.settings.seed)


def file_of(trainer: LocalTrainer) -> bytes:
    return encode_adapter(trainer.policy.card.layout, trainer.adapter())


def two_rounds(trainer: LocalTrainer, problems: Sequence[Problem]) -> bytes:
    """Train two rounds of a private and a public step, whose exchange returns our own responses."""
    adapter = start(trainer)
    for round_ in (1, 2):
        trainer.begin_round(round_, adapter)
        trainer.private_step(1)
        trainer.public_step(2, problems[:3], trainer.public_rollout(2, problems[:3]))
        adapter = trainer.adapter()
    return file_of(trainer)


def test_training_again_gives_the_same_adapter_bit_for_bit(
    make_trainer: MakeTrainer, problems: list[Problem]
) -> None:
    """Two processes of one client agree; another client draws differently."""
    first = two_rounds(make_trainer(), problems)
    assert first == two_rounds(make_trainer(), problems)
    assert first != two_rounds(make_trainer("b"), problems)


def test_a_round_can_be_done_again_from_its_adapter(make_trainer: MakeTrainer) -> None:
    """With a reset optimizer, nothing of an earlier round remains in the trainer."""
    fresh, used = make_trainer(), make_trainer()
    used.begin_round(1, start(used))
    used.private_step(1)
    for trainer in (fresh, used):
        trainer.begin_round(2, start(trainer))
        trainer.private_step(1)
    assert file_of(fresh) == file_of(used)


def test_every_step_of_every_client_and_round_has_draws_of_its_own(
    make_trainer: MakeTrainer, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two rollouts share a seed, and the seeds are reproducible."""

    def seeds() -> list[int]:
        found: list[int] = []
        for client in ("a", "b"):
            trainer = make_trainer(client)
            generate = trainer.engine.generate

            def recording(prompts: Any, sampling: Any, generate: Any = generate) -> Any:
                found.append(sampling.seed)
                return generate(prompts, sampling)

            monkeypatch.setattr(trainer.engine, "generate", recording)
            two_rounds(trainer, problems)
        return found

    first = seeds()
    assert len(first) == len(set(first)) == 8
    assert first == seeds()


@pytest.mark.parametrize(
    "grpo",
    [
        {"temperature": SMALLEST},
        {"temperature": MAX_FACTOR},
        {"max_grad_norm": SMALLEST},
        {"learning_rate": SMALLEST, "weight_decay": 1.0},
        {"kl_beta": SMALLEST},
        {"kl_beta": MAX_FACTOR, "entropy_coefficient": MAX_FACTOR},
    ],
)
def test_extreme_settings_train_to_finite_adapters(
    grpo: dict[str, float],
    make_trainer: MakeTrainer,
    run_settings: RunSettings,
    problems: list[Problem],
) -> None:
    """Allowed settings never make a step fail or an adapter infinite."""
    changed = GrpoSettings.model_validate(run_settings.grpo.model_dump() | grpo)
    settings = run_settings.model_copy(update={"grpo": changed})
    trainer = make_trainer(settings=settings)
    two_rounds(trainer, problems)
    assert all(np.isfinite(factor).all() for factor in trainer.adapter().values())


def test_a_kept_optimizer_remembers_the_last_round(
    make_trainer: MakeTrainer, run_settings: RunSettings
) -> None:
    """optimizer_state 'keep' gives another result than 'reset'."""
    grpo = run_settings.grpo.model_copy(update={"optimizer_state": "keep"})
    keeping = run_settings.model_copy(update={"grpo": grpo})
    files = []
    for settings in (run_settings, keeping):
        trainer = make_trainer(settings=settings)
        for round_ in (1, 2):
            trainer.begin_round(round_, start(trainer))
            trainer.private_step(1)
        files.append(file_of(trainer))
    assert files[0] != files[1]


def test_a_pipelined_step_s_staleness_is_not_taken_for_a_mismatch(
    make_trainer: MakeTrainer, run_settings: RunSettings, problems: list[Problem]
) -> None:
    """Its own tokens may differ from the policy by an update; for a step that waits, they must not
    differ.
    """
    pipelined = run_settings.model_copy(
        update={"local_steps": 4, "method": PubSwap(mode="pipelined")}
    )
    trainer = make_trainer(settings=pipelined)
    trainer.max_mismatch = 1e-3
    trainer.begin_round(1, start(trainer))
    trainer.private_step(1)
    groups = trainer.public_rollout(2, problems[:3])
    trainer.private_step(3)
    metrics = trainer.public_step(2, problems[:3], groups)
    assert metrics.staleness == 1
    assert metrics.mismatch > trainer.max_mismatch
    groups = trainer.public_rollout(4, problems[:3])
    trainer.private_step(3)
    with pytest.raises(StaleAdapter):
        trainer.public_step(4, problems[:3], groups)


def test_training_raises_the_reward(make_trainer: MakeTrainer) -> None:
    """Over twenty steps on a rule that can be learned."""
    trainer = make_trainer()
    trainer.begin_round(1, start(trainer))
    rewards = [trainer.private_step(step).reward for step in range(1, 40, 2)]
    assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.1


def test_a_public_step_trains_on_what_it_is_given(
    make_trainer: MakeTrainer, problems: list[Problem]
) -> None:
    """Peers' responses are scored again, but the reported reward is our own."""
    ours, theirs = make_trainer("a"), make_trainer("b")
    for trainer in (ours, theirs):
        trainer.begin_round(1, start(trainer))
    own = ours.public_rollout(2, problems[:3])
    peers = [[r.as_donated() for r in group] for group in theirs.public_rollout(2, problems[:3])]
    right = [is_even(text) for group in own for text in ours.policy.decode(group)]
    mixed = [a[:2] + b[:2] for a, b in zip(own, peers, strict=True)]
    metrics = ours.public_step(2, problems[:3], mixed)
    assert metrics.reward == pytest.approx(sum(right) / len(right))
    assert metrics.tokens == sum(len(r.tokens) for group in mixed for r in group)
    after_mixed = file_of(ours)
    ours.begin_round(1, start(ours))
    ours.public_step(2, problems[:3], own)
    assert file_of(ours) != after_mixed


def test_a_private_prompt_that_is_too_long_is_found_at_the_start(
    make_trainer: MakeTrainer,
) -> None:
    """Not in mid-run."""
    with pytest.raises(InvalidProblems, match="max_prompt_tokens"):
        make_trainer(more=[Problem(id="long", prompt="1" * 50, answer="1")])


def test_pass_at_1_is_the_share_of_correct_responses_overall_and_by_topic(
    policy: Policy,
    problems: list[Problem],
    run_settings: RunSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a score from correct_at on; the mean score stands beside it. Topics are sorted."""
    asked: list[int] = []

    def scorer(cases: Sequence[tuple[str, Problem]]) -> list[Scored]:
        asked.append(len(cases))
        right = [problem.topic == "odd" or problem.id == "0" for _, problem in cases]
        return [Scored(0.9 if each else 0.7, 0.0, parts={"form": 0.5}) for each in right]

    evaluation = run_settings.evaluation.model_copy(update={"samples": 2, "batch_size": 3})
    settings = run_settings.model_copy(update={"evaluation": evaluation, "correct_at": 0.8})
    monkeypatch.setattr(policy, "settings", settings)
    judged = judge(policy, TransformersEngine(policy), problems, scorer, seed=1)
    overall, by_topic = pass_at_1(judged)
    assert asked == [6, 6, 4]
    assert overall == pytest.approx(5 / 8)
    assert list(by_topic.items()) == [("even", pytest.approx(0.25)), ("odd", 1.0)]
    score, parts = mean_scores([each.scored for group in judged for each in group])
    assert (score, parts) == (pytest.approx(0.9 * 5 / 8 + 0.7 * 3 / 8), {"form": 0.5})


def test_pass_at_1_is_a_function_of_the_seed(policy: Policy, problems: list[Problem]) -> None:
    """The same seed scores the same texts, and another seed others."""
    seen: list[list[str]] = []

    def scorer(cases: Sequence[tuple[str, Problem]]) -> list[Scored]:
        seen.append([text for text, _ in cases])
        return [Scored(0.0, 0.0)] * len(cases)

    for seed in (1, 1, 2):
        judge(policy, TransformersEngine(policy), problems, scorer, seed)
    assert seen[0] == seen[1] != seen[2]
