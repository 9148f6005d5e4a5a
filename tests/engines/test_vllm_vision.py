"""The vLLM in the daemon on models with a vision tower, as they are published."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pubswap_client.rollout.transformers_engine import SamplingParameters
from pubswap_client.rollout.vllm_engine import VllmEngine
from pubswap_client.settings import VllmSettings
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from support.client.mismatches import TEXTS, compared
from support.coordinator.replicas import needs_vllm

pytestmark = [
    needs_vllm,
    pytest.mark.filterwarnings("ignore::FutureWarning:vllm.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
# Not Qwen3.5: on a CPU, vLLM computes its linear attention in bfloat16 alone.
KINDS = ["gemma3", "gemma4", "llava", "mistral3", "qwen2_5_vl", "qwen3_vl"]
SETTINGS = RunSettings.model_validate(
    {
        "lora": {"rank": 4, "alpha": 8},
        "grpo": {"max_prompt_tokens": 64, "max_response_tokens": 32},
    }
)


@pytest.mark.usefixtures("no_images")
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_a_published_model_is_sampled_from_the_current_policy(
    kind: str, tmp_path: Path
) -> None:
    """The policy is the text model alone, and vLLM loads the folder as it is published."""
    from pubswap_client.policy.policy import Policy
    from support.models.published import save_published

    base = tmp_path / "base"
    save_published(base, kind)
    card = model_card(base, SETTINGS.lora, kind, None)
    policy = Policy.load(base, card, SETTINGS, device="cpu")
    prompts = [policy.encode(text) for text in TEXTS]
    adapters = [
        {
            name: np.random.default_rng((seed, n)).normal(0, 0.3, shape).astype(np.float32)
            for n, (name, shape) in enumerate(card.layout.tensors.items())
        }
        for seed in (1, 2)
    ]
    vllm = VllmSettings(extra={"kv_cache_memory_bytes": 1 << 27})
    with closing(VllmEngine(policy, base, tmp_path / "work", vllm)) as engine:
        for adapter in adapters:
            policy.load_adapter(adapter)
            groups = engine.generate(prompts, SamplingParameters(6, 32, 0.7, 1))
            assert compared(policy, groups).max() < 1e-5
    policy.load_adapter(adapters[0])
    assert compared(policy, groups).mean() > 1e-4
