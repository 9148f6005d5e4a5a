"""The loss and every LoRA gradient against an independent implementation: TRL's GRPOTrainer.

TRL's private methods are called as its trainer calls them, so the dev extra pins `trl`. Our
sequence_mean is TRL's "grpo"; token_mean is its "bnpo" if the batch is whole.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.logprobs import Scores, response_logprobs, score_pack
from pubswap_client.policy.packing import pack
from pubswap_client.policy.policy import Policy
from pubswap_client.training.objective import Targets, objective
from pubswap_protocol.methods.advantages import ByStd
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import GrpoSettings, RunSettings
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.tensors.responses import Response
from support.client.reference import rectangles

trl = pytest.importorskip("trl")

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:`{name}` is deprecated:FutureWarning")
    for name in ("is_gradient_checkpointing", "gradient_checkpointing")
]
BUDGET = 1 << 20
WIDEST = 9


class AsTrl(ByStd):
    """TRL's epsilon."""

    def scale(self, rewards: torch.Tensor) -> torch.Tensor:
        return rewards.std(dim=1, keepdim=True) + 1e-4


TRL_LOSS = {"sequence_mean": "grpo", "token_mean": "bnpo"}
PROMPTS = ([4, 13, 5, 17], [6, 7, 8, 9, 10, 11, 17], [5, 17])
REWARDS = ([1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
LENGTHS = ([3, 12, 1, 6], [5, 2, 9, 9], [7, 2, 12, 4])


def grpo(**changes: Any) -> GrpoSettings:
    # TRL uses importance weights only with vLLM.
    return GrpoSettings.model_validate({"rollout_correction": "none"} | changes)


@pytest.fixture
def groups(make_responses: Callable[..., list[Response]]) -> list[Group]:
    """Three groups of four; the last has equal rewards."""
    return [Group(PROMPTS[i], make_responses(LENGTHS[i], seed=i), REWARDS[i]) for i in range(3)]


@pytest.fixture
def batch(groups: list[Group]) -> Batch:
    """The groups as our batch, with TRL's epsilon."""
    return collate(groups, AsTrl())


@pytest.fixture(params=["tiny_mild_qwen3", "tiny_qwen3"])
def folder(request: pytest.FixtureRequest) -> Path:
    """A model whose largest gradient is below 1, and one whose largest is above 2."""
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture
def policy(
    folder: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    random_adapter: Callable[..., Adapter],
) -> Policy:
    """The model with factors that are not zero."""
    loaded = Policy.load(folder, card_of(folder), run_settings, device="cpu")
    loaded.load_adapter(random_adapter(loaded.card.layout, seed=1))
    return loaded


@pytest.fixture
def make_trl(policy: Policy, folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """A function that makes TRL's trainer with the same model and factors as the policy."""

    def make(loss_type: str) -> Any:
        from datasets import Dataset
        from peft import LoraConfig
        from transformers import AutoModelForCausalLM, AutoTokenizer

        rows = [{"prompt": text} for text in ("1+0=", "2=", "3=")]
        lora = policy.settings.lora
        trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=lambda completions, **_: [r for group in REWARDS for r in group],
            train_dataset=Dataset.from_list(rows),
            peft_config=LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear"),
            args=trl.GRPOConfig(
                output_dir=str(tmp_path),
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                loss_type=loss_type,
                beta=1e-4,
                epsilon=0.2,
                epsilon_high=0.25,
                temperature=0.7,
                num_iterations=2,
                num_generations=4,
                per_device_train_batch_size=12,
                max_completion_length=12,
                use_bias_correction_kl=False,
            ),
        )
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        with torch.no_grad():
            for name, parameter in factors(trainer.model).items():
                parameter.copy_(torch.tensor(policy.adapter()[name]))
        return trainer

    return make


def factors(model: Any) -> dict[str, Any]:
    return {
        name.replace(".default.weight", ".weight"): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def old_and_reference(
    policy: Policy, batch: Batch, random_adapter: Callable[..., Adapter]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities under an earlier adapter and under the base model."""
    now = policy.adapter()
    noise = random_adapter(policy.card.layout, seed=9, scale=0.1)
    policy.load_adapter({name: now[name] + noise[name] for name in now})
    old = response_logprobs(policy, batch, 0.7, BUDGET)
    policy.load_adapter(now)
    with policy.reference():
        return old, response_logprobs(policy, batch, 0.7, BUDGET)


def as_trl(batch: Batch, old: torch.Tensor, reference: torch.Tensor) -> dict[str, torch.Tensor]:
    width, (ids, mask) = batch.width, rectangles(batch)
    return {
        "prompt_ids": ids[:, :-width],
        "prompt_mask": mask[:, :-width],
        "completion_ids": ids[:, -width:],
        "completion_mask": batch.response_mask.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": batch.response_mask.sum(),
    }


def packed_scores(policy: Policy, batch: Batch) -> tuple[torch.Tensor, Scores]:
    """Score all rows in one pack, as the update does; returns their indices in (B T,), and
    scores.
    """
    everything = pack(batch, range(batch.rows), policy.device)
    with policy.packed():
        return everything.indices, score_pack(policy, everything, 0.7, entropy=True)


@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_loss_and_all_gradients_equal_trls(
    policy: Policy,
    batch: Batch,
    make_trl: Callable[..., Any],
    random_adapter: Callable[..., Adapter],
    aggregation: str,
) -> None:
    """With a KL term, and old log-probabilities for which the clip is active.

    Within 1e-6 where gradients are below 1, and otherwise within 2e-6 of the largest one: there
    float32 is no closer to the float64 gradient, neither in TRL nor in ours.
    """
    settings = grpo(loss_aggregation=aggregation)
    old, reference = old_and_reference(policy, batch, random_adapter)
    places, scores = packed_scores(policy, batch)
    width = batch.width
    targets = Targets(
        advantages=batch.advantages.repeat_interleave(width),
        weights=settings.loss_aggregation.coefficients(batch.response_mask, WIDEST).flatten(),
        old=old.flatten(),
        donated=batch.donated.repeat_interleave(width),
        behaviour=batch.behaviour.flatten(),
        reference=reference.flatten(),
    ).take(places)
    ours = objective(scores.logprobs, targets, settings)
    ours.total.backward()
    trainer = make_trl(TRL_LOSS[aggregation])
    theirs = trainer._compute_loss(trainer.model, as_trl(batch, old, reference))
    theirs.backward()

    assert ours.clip_share > 0.1
    assert abs(ours.total.item() - theirs.item()) <= 1e-6
    named = factors(trainer.model)
    largest = max(float(parameter.grad.abs().max()) for parameter in named.values())
    assert largest > 1e-2
    for name, mine in zip(sorted(named), policy.trainable(), strict=True):
        assert mine.grad is not None
        difference = float((mine.grad - named[name].grad).abs().max())
        assert difference <= (1e-6 if largest < 1 else 2e-6 * largest), name


def test_log_probabilities_and_entropies_equal_trls(
    policy: Policy, batch: Batch, make_trl: Callable[..., Any]
) -> None:
    """On response tokens, both divided by the temperature."""
    trainer = make_trl("grpo")
    places, ours = packed_scores(policy, batch)
    with torch.no_grad():
        logprobs, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, *rectangles(batch), batch.width, compute_entropy=True
        )
    assert ours.entropy is not None
    assert torch.allclose(ours.logprobs, logprobs.flatten()[places], atol=1e-5)
    assert torch.allclose(ours.entropy, entropies.flatten()[places], atol=1e-5)


def test_advantages_masks_old_and_reference_equal_trls_own_preparation(
    policy: Policy, groups: list[Group], batch: Batch, make_trl: Callable[..., Any]
) -> None:
    """From the same tokens and rewards, TRL prepares the same batch."""
    trainer = make_trl("grpo")
    rows = [(group, response) for group in groups for response in group.responses]
    prompts = [list(group.prompt) for group, _ in rows]
    completions = [response.tokens.tolist() for _, response in rows]
    generated = (prompts, completions, None, ["-"] * len(rows), None, {}, None, None)
    trainer._generate = lambda _prompts: generated
    found = trainer._generate_and_score_completions([{"prompt": "-"} for _ in rows])

    mask, (ids, _) = batch.response_mask, rectangles(batch)
    assert torch.equal(found["completion_mask"].bool(), mask)
    assert torch.equal(found["prompt_ids"] * found["prompt_mask"], ids[:, : -batch.width])
    assert np.allclose(found["advantages"], batch.advantages, atol=1e-6)
    old = response_logprobs(policy, batch, 0.7, BUDGET)
    assert torch.allclose(found["old_per_token_logps"][mask], old[mask], atol=1e-5)
    with policy.reference():
        reference = response_logprobs(policy, batch, 0.7, BUDGET)
    assert torch.allclose(found["ref_per_token_logps"][mask], reference[mask], atol=1e-5)
