"""A real vLLM beside the trainer, in the daemon's process and as a server."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.gpu.context import Context
from benchmarks.gpu.engines import sampling
from benchmarks.gpu.mismatch import apart
from benchmarks.gpu.plan import FIRST
from benchmarks.workload import Workload, start_adapter
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_protocol.model import model_card
from pubswap_protocol.tensors.responses import Response

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.filterwarnings("ignore"),
]
COUNT, LONG, TEMPERATURE = 4, 12, 1.0
GB = 1 << 30


@pytest.fixture(scope="module")
def base(context: Context) -> Path:
    """A tiny Qwen3 whose tokens are far from equally likely, so that an adapter shows."""
    folder = context.scratch / "sharp"
    shutil.copytree(context.folder(FIRST), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"].fill_(4.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def policy(context: Context, base: Path) -> Policy:
    card = model_card(base, context.settings.lora, "vllm", None)
    loaded = Policy.load(base, card, context.settings, context.device)
    check_packed_path(loaded)
    return loaded


@pytest.fixture(scope="module", params=["vllm", "vllm-server"])
def engine(
    request: pytest.FixtureRequest, context: Context, policy: Policy, base: Path
) -> Iterator[Any]:
    with sampling(context, policy, base, request.param) as made:
        yield made


@pytest.fixture(scope="module")
def prompts(context: Context, policy: Policy) -> list[list[int]]:
    return Workload.make(context.scale.lengths, policy.card.vocabulary).prompts


def load(policy: Policy, seed: int) -> None:
    policy.load_adapter(start_adapter(policy.card.layout, seed))


def sampled(engine: Any, prompts: list[list[int]], seed: int = 1) -> list[list[Response]]:
    parameters = SamplingParameters(COUNT, LONG, TEMPERATURE, seed, gumbel=True)
    groups: list[list[Response]] = engine.generate(prompts, parameters)
    return groups


def alike(one: list[list[Response]], other: list[list[Response]]) -> float:
    """The share of responses that are equal, token for token."""
    rows = [
        left.tokens.tolist() == right.tokens.tolist()
        for pair in zip(one, other, strict=True)
        for left, right in zip(*pair, strict=True)
    ]
    return sum(rows) / len(rows)


def test_a_new_adapter_is_what_is_sampled_from(
    engine: Any, policy: Policy, prompts: list[list[int]]
) -> None:
    """Log-probabilities are the trainer's after each load, up to rounding, and no other's."""
    exact = policy.device.type == "cpu"
    for seed in (1, 2):
        load(policy, seed)
        groups = sampled(engine, prompts)
        right = apart(policy, prompts, groups, TEMPERATURE)
        load(policy, 3)
        wrong = apart(policy, prompts, groups, TEMPERATURE)
        assert float(right.mean()) <= (1e-4 if exact else 0.05)
        assert float(wrong.mean()) > 4 * float(right.mean())


def test_a_seed_gives_the_same_responses_again(
    engine: Any, policy: Policy, prompts: list[list[int]]
) -> None:
    """On a GPU, up to rare ties; another seed gives others."""
    load(policy, 1)
    first = sampled(engine, prompts, seed=1)
    assert alike(first, sampled(engine, prompts, seed=1)) >= 0.9
    assert alike(first, sampled(engine, prompts, seed=2)) < 0.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="vLLM's own noise on a CPU is another")
def test_draws_are_by_the_noise_that_anyone_can_recompute(
    engine: Any, policy: Policy, prompts: list[list[int]]
) -> None:
    """Nearly all responses are those of our own engine, which adds the noise of gumbel.py."""
    load(policy, 1)
    own = TransformersEngine(policy)
    expected = sampled(own, prompts)
    own.close()
    assert alike(expected, sampled(engine, prompts)) >= 0.7


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU's memory is given back")
def test_a_sleeping_vllm_leaves_its_memory_to_the_trainer(
    context: Context, policy: Policy, base: Path, prompts: list[list[int]]
) -> None:
    """Most of its share is free between two rollouts, and the second is the first again."""
    load(policy, 1)
    share = 8 * GB
    extra = {"kv_cache_memory_bytes": share}
    free, _ = torch.cuda.mem_get_info()
    with sampling(context, policy, base, "vllm", sleep=True, extra=extra) as asleep:
        first = sampled(asleep, prompts)
        left, _ = torch.cuda.mem_get_info()
        assert free - left < share / 2
        assert alike(first, sampled(asleep, prompts)) >= 0.9
