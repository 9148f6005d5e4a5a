"""Every architecture trains as listed, and gets the gradients of its own plain forward pass.

The reference is the same model in float64, one row at a time, without packs, padding, fused LoRA or
shared heads: log-probabilities of responses, and gradients of the adapter.
"""

import copy
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import AutoConfig

from pubswap_client.policy.groups import Batch, Group, collate
from pubswap_client.policy.logprobs import plan_of, response_logprobs, score_pack
from pubswap_client.policy.memory import Shape
from pubswap_client.policy.packing import pack
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import model_layout
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import Response
from support.client.architectures import CASES, VOCABULARY, policy_of, random_model

ROWS = ((7, (14, 1)), (20, (3, 22)), (1, (1, 2)))  # prompt and response lengths; windows are 16
TEMPERATURE = 0.7
COMMON = ("Qwen3", "Llama 3.2", "Mistral", "Gemma 2", "Gemma 3", "Granite", "BLOOM", "Qwen3-MoE")


def settings(targets: Sequence[str] | str = "all-linear") -> RunSettings:
    return RunSettings.model_validate(
        {
            "lora": {"rank": 2, "alpha": 4, "target_modules": targets},
            "grpo": {"max_prompt_tokens": 30, "max_response_tokens": 30},
        }
    )


def random_batch() -> Batch:
    generator = torch.Generator().manual_seed(4)

    def tokens(count: int) -> torch.Tensor:
        return torch.randint(VOCABULARY, (count,), generator=generator)

    groups = []
    for prompt, lengths in ROWS:
        made = [Response(tokens(n).int().numpy(), torch.zeros(n).numpy()) for n in lengths]
        groups.append(Group(tokens(prompt).tolist(), made, [0.0] * len(made)))
    return collate(groups)


def learned(policy: Policy, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores (n,), and the gradient of a weighted sum of them, in float64."""
    for factor in policy.factors():
        factor.grad = None
    (scores * torch.arange(len(scores)).sin()).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(f) if f.grad is None else f.grad for f in policy.factors()]
    return scores.detach().double(), torch.cat([each.flatten().double() for each in gradients])


def by_rows(policy: Policy, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Score each row alone with transformers: whole logits, and a softmax over them."""
    scores = []
    for row in range(batch.rows):
        prompt, response = batch.prompts[row // batch.group_size], batch.responses[row]
        ids = torch.cat([prompt, response])[None]
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        everything = (logits / TEMPERATURE).log_softmax(dim=-1)
        scores.append(everything.gather(1, response[:, None]).squeeze(1))
    return learned(policy, torch.cat(scores))


def by_packs(policy: Policy, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Score as the update does, in several packs."""
    with policy.packed():
        parts = [
            score_pack(policy, pack(batch, rows, policy.device), TEMPERATURE).logprobs
            for rows in plan_of(policy, batch, range(batch.rows), 60)
        ]
    assert len(parts) > 1
    return learned(policy, torch.cat(parts))


def check_sampling(policy: Policy) -> None:
    """Check that the sampled responses' log-probabilities are the policy's, with prompts of
    different lengths in a batch.
    """
    prompts = [[5, 6, 7, 8, 9, 10, 11], [12, 13]]
    sampled = TransformersEngine(policy).generate(
        prompts, SamplingParameters(2, 12, TEMPERATURE, 1)
    )
    groups = [Group(p, r, [0.0] * len(r)) for p, r in zip(prompts, sampled, strict=True)]
    batch = collate(groups)
    scores = response_logprobs(policy, batch, TEMPERATURE, 1 << 20)
    limit = 1e-3 if policy.dtype == torch.float32 else 0.5
    assert float((scores - batch.behaviour).abs().max()) < limit


def off(found: tuple[torch.Tensor, torch.Tensor], true: tuple[torch.Tensor, torch.Tensor]) -> Any:
    """The errors: RMS of log-probabilities, and relative L2 of gradients."""
    scores = (found[0] - true[0]).square().mean().sqrt()
    return float(scores), float((found[1] - true[1]).norm() / true[1].norm())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in CASES]
    + [
        pytest.param(name, torch.bfloat16, marks=[] if name in COMMON else pytest.mark.full)
        for name in CASES
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")  # transformers and PEFT warn about unusual models
def test_each_architecture_trains_as_listed(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Packed, padded, or refused when a run is created; a refusal names the layers that can be
    trained.
    """
    case, run = CASES[name], settings()
    model = random_model(name, dtype)
    model.save_pretrained(tmp_path)
    weights = copy.deepcopy(model.state_dict())
    way = case.way
    if way == "refused":
        with pytest.raises(InvalidSettings, match=r"chooses|no key-value cache") as refusal:
            model_layout(tmp_path, run.lora)
        named = re.search(r"Set lora.target_modules = (\[.*\])", str(refusal.value))
        assert (named is None) == (case.named is None)
        if named is None or case.named is None:
            return
        run, way = settings(json.loads(named[1])), case.named
    layout = model_layout(tmp_path, run.lora)
    policy = policy_of(model, layout, run)
    verdict = check_packed_path(policy)
    if name == "GPT-J" and Version(transformers.__version__) < Version("5.24"):
        way = "padded"  # its attention could not be replaced
    assert verdict.path == {"packed": "portable", "padded": "padded"}[way], verdict
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for factor in policy.factors():
            factor.normal_(0, 0.2, generator=generator)

    precise = random_model(name, torch.float64)
    precise.load_state_dict(weights)
    reference = policy_of(precise, layout, run)
    reference.model.double()
    with torch.no_grad():
        for ours, theirs in zip(policy.factors(), reference.factors(), strict=True):
            theirs.copy_(ours)
    check_sampling(policy)
    batch = random_batch()
    true = by_rows(reference, batch)
    assert true[1].norm() > 1e-2
    scores, gradients = off(by_packs(policy, batch), true)
    if dtype == torch.float32:
        assert (scores, gradients) < (1e-4, 1e-4)
        assert gradients < 1e-4
    else:
        # The model's own pass in bfloat16 has a rounding error as well.
        own_scores, own_gradients = off(by_rows(policy, batch), true)
        assert scores < 1.5 * own_scores + 1e-3
        assert gradients < 1.5 * own_gradients + 1e-2


@pytest.mark.parametrize("kind", sorted({case.kind for case in CASES.values()}))
def test_the_sizes_of_each_architecture_are_read_from_its_own_config(kind: str) -> None:
    """Memory estimates need them, whatever name the config uses for its MLP."""
    if all(
        case.way == "refused" and not case.named for case in CASES.values() if case.kind == kind
    ):
        return
    shape = Shape.of(AutoConfig.for_model(kind), torch.float32)
    assert shape.intermediate > 0 and shape.layers > 0 and shape.head_dim > 0
