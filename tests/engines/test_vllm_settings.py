"""The vLLM that we start: its settings, and one for each process, with a real vLLM on CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_client.rollout.transformers_engine import SamplingParameters
from pubswap_client.rollout.vllm_engine import VllmEngine
from pubswap_client.settings import VllmSettings
from pubswap_client.training.mismatch import UNUSUAL
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.tensors.adapter import Adapter
from support.client.mismatches import TEXTS, compared
from support.coordinator.replicas import needs_vllm

if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy

pytestmark = [
    needs_vllm,
    pytest.mark.filterwarnings("ignore::FutureWarning:vllm.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TESTS = Path(__file__).parents[1]
PROGRAM = TESTS / "support" / "client" / "crewed.py"
Adapters = Callable[[int], Adapter]


class Halved:
    """A policy whose engine is to compute in bfloat16."""

    def __init__(self, policy: "Policy") -> None:
        import torch

        self.policy = policy
        self.model = SimpleNamespace(dtype=torch.bfloat16)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


def test_an_engine_in_bfloat16_has_logits_in_float32_and_is_no_other_policy(
    policy: "Policy", adapter: Adapters, tmp_path: Path
) -> None:
    """Of a trainer in float32: its rounding is not even unusual. An extra argument is there too."""
    import torch

    policy.load_adapter(adapter(1))
    settings = VllmSettings(extra={"max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 27})
    halved: Any = Halved(policy)
    with closing(VllmEngine(halved, MODEL, tmp_path, settings)) as engine:
        config = engine._llm.llm_engine.vllm_config
        assert config.model_config.dtype == torch.bfloat16
        assert config.model_config.head_dtype == torch.float32
        assert config.scheduler_config.max_num_seqs == 8
        prompts = [policy.encode(text) for text in TEXTS]
        groups = engine.generate(prompts, SamplingParameters(24, 32, 0.7, 1))
    assert 1e-4 < compared(policy, groups).mean() < UNUSUAL


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"max_num_seq": 8}, r"does not start.*'max_num_seq'"),
        ({"kv_cache_dtype": "fp7"}, r"does not start.*kv_cache_dtype|cache_dtype"),
        ({"max_num_seqs": "many"}, r"does not start"),
    ],
)
def test_what_vllm_does_not_take_is_our_own_error(
    policy: "Policy", tmp_path: Path, extra: dict[str, Any], message: str
) -> None:
    """A name, or a value."""
    with pytest.raises(InvalidSettings, match=message):
        VllmEngine(
            policy, MODEL, tmp_path, VllmSettings(extra=extra | {"kv_cache_memory_bytes": 1 << 27})
        )


@pytest.mark.full  # `pytest --full tests/engines`: four starts of vLLM take many minutes
@pytest.mark.timeout(900)
def test_two_processes_sample_by_a_vllm_each_what_one_samples(tmp_path: Path) -> None:
    """Draws are keyed by place; the second step is sampled from the adapter of the first."""
    found = {}
    for processes in (1, 2):
        out = tmp_path / str(processes) / "out.json"
        out.parent.mkdir()
        arguments = [str(MODEL), str(out), str(processes), "vllm", "4"]
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *arguments],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found[processes] = json.loads(out.read_text())
        assert sorted(path.name for path in out.parent.iterdir()) == ["out.json", "out.npz"]
    assert found[1]["tokens"] == found[2]["tokens"]
    assert found[1]["losses"] == pytest.approx(found[2]["losses"], abs=1e-5)
