"""The in-process vLLM engine, against a fake vLLM: its arguments, its sleep and its errors."""

import logging
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout import vllm_engine
from pubswap_client.rollout.transformers_engine import SamplingParameters
from pubswap_client.rollout.vllm_engine import VllmEngine, engine_arguments
from pubswap_client.settings import NOT_EXTRA, VllmSettings, load_settings
from pubswap_protocol.errors import EngineFault, InvalidSettings
from pubswap_protocol.tensors.responses import Response
from support.vllm.fake_engine import FakeEngine

MODEL = Path("/model")
PROMPTS = [[4, 5], [6, 7, 8], [9]]


@pytest.fixture
def policy(make_policy: Callable[..., Policy]) -> Policy:
    return make_policy("qwen3")


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A fake that replaces vLLM, even if that is installed."""
    for name in ("vllm", "vllm.lora", "vllm.lora.request"):
        monkeypatch.setitem(sys.modules, name, None)
    fake = FakeEngine()
    fake.install(sys.modules)
    return fake


@dataclass
class Elsewhere:
    """A policy that pretends to be on another device and in another precision."""

    policy: Policy
    device: torch.device
    dtype: torch.dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    @property
    def model(self) -> Any:
        return self


def on_gpu(policy: Policy, place: str = "cuda") -> Any:
    return Elsewhere(policy, torch.device(place), torch.bfloat16)


def generate(engine: VllmEngine, prompts: list[list[int]] = PROMPTS, first: int = 0) -> Any:
    return tokens(engine.generate(prompts, SamplingParameters(2, 8, 0.7, 3), first))


def tokens(groups: list[list[Response]]) -> list[list[list[int]]]:
    return [[response.tokens.tolist() for response in group] for group in groups]


def test_some_of_the_prompts_get_the_same_responses_as_among_all(
    policy: Policy, vllm: FakeEngine, tmp_path: Path
) -> None:
    """Seeds are keyed by a prompt's index, so any process may sample it."""
    with closing(VllmEngine(policy, MODEL, tmp_path / "work", VllmSettings())) as engine:
        together = generate(engine)
        assert generate(engine, PROMPTS[:1]) + generate(engine, PROMPTS[1:], first=1) == together
        assert generate(engine, PROMPTS[1:]) != together[1:]
    assert vllm.calls == ["start", *(f"generate {n}" for n in (3, 1, 2, 2)), "shutdown"]
    assert not (tmp_path / "work").exists()


def test_it_sleeps_between_rollouts_and_wakes_to_an_empty_cache(
    policy: Policy, vllm: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory that torch has cached is released first, at the start too."""
    monkeypatch.setattr(vllm_engine, "release_cached_memory", lambda: vllm.note("release"))
    with closing(VllmEngine(policy, MODEL, tmp_path, VllmSettings(), sleeps=True)) as engine:
        generate(engine)
    started, rollout = ["release", "start", "sleep"], ["release", "wake up", "generate 3", "sleep"]
    assert vllm.calls == [*started, *rollout, "shutdown"]


def test_a_vllm_that_cannot_wake_up_says_what_to_set(
    policy: Policy, vllm: FakeEngine, tmp_path: Path
) -> None:
    """vLLM raises a bare Exception for errors in its own process."""
    vllm.fail["wake up"] = [Exception("Call to wake_up method failed: CUDA Error: out of memory")]
    with (
        closing(VllmEngine(policy, MODEL, tmp_path, VllmSettings(), sleeps=True)) as engine,
        pytest.raises(EngineFault, match="out of memory") as caught,
    ):
        generate(engine)
    for setting in (
        "vllm.sleep = false",
        "vllm.extra.gpu_memory_utilization",
        "micro_batch_tokens",
    ):
        assert setting in caught.value.detail


def test_an_error_while_sampling_is_not_hidden_by_one_of_falling_asleep(
    policy: Policy, vllm: FakeEngine, tmp_path: Path
) -> None:
    """A process that has died can neither sample nor sleep."""
    vllm.fail = {"generate 3": [RuntimeError("died")], "sleep": [None, RuntimeError("dead")]}
    with (
        closing(VllmEngine(policy, MODEL, tmp_path, VllmSettings(), sleeps=True)) as engine,
        pytest.raises(EngineFault, match=r"could not sample.*died"),
    ):
        generate(engine)
    assert vllm.calls[-2:] == ["sleep", "shutdown"]


def test_any_engine_argument_is_passed_through(
    policy: Policy, vllm: FakeEngine, tmp_path: Path
) -> None:
    """As written in client.toml: numbers, strings and tables."""
    config = tmp_path / "client.toml"
    config.write_text(
        """
        [vllm.extra]
        max_num_seqs = 96
        kv_cache_dtype = "fp8"
        speculative_config = { method = "ngram", num_speculative_tokens = 4 }
        """
    )
    settings = load_settings(config).vllm
    VllmEngine(policy, MODEL, tmp_path / "work", settings).close()
    (arguments,) = vllm.started
    assert arguments["max_num_seqs"] == 96
    assert arguments["kv_cache_dtype"] == "fp8"
    assert arguments["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 4}
    assert "hf_overrides" not in arguments  # everything is in float32 here


def test_an_argument_that_has_a_setting_is_refused_with_it(tmp_path: Path) -> None:
    """So that nothing is set twice."""
    config = tmp_path / "client.toml"
    config.write_text("[vllm.extra]\nmax_lora_rank = 1\n")
    with pytest.raises(InvalidSettings, match=r"max_lora_rank.*lora\.rank"):
        load_settings(config)


@pytest.mark.parametrize("place", ["cpu", "cuda", "cuda:1"])
def test_every_argument_that_we_set_is_refused_among_the_extra_ones(
    policy: Policy, place: str
) -> None:
    """Except for overrides of the model's config, which are merged, and what may be replaced."""
    policy = Elsewhere(policy, torch.device(place), torch.bfloat16)  # type: ignore[assignment]
    arguments = engine_arguments(policy, MODEL, VllmSettings(), sleeps=True)
    replaced = {"enforce_eager", "gpu_memory_utilization", "kv_cache_memory_bytes"}
    assert arguments.keys() - NOT_EXTRA.keys() == {"hf_overrides", *replaced}


def test_a_process_of_several_has_its_own_gpu(policy: Policy) -> None:
    """A single process leaves the choice to vLLM, and a vLLM over several GPUs takes the first
    ones.
    """
    settings = VllmSettings()
    assert engine_arguments(on_gpu(policy, "cuda:3"), MODEL, settings, False)["device_ids"] == [3]
    assert "device_ids" not in engine_arguments(on_gpu(policy), MODEL, settings, False)
    wide = VllmSettings(tensor_parallel=2)
    assert "device_ids" not in engine_arguments(on_gpu(policy, "cuda:0"), MODEL, wide, False)


def test_a_vision_tower_is_not_started(policy: Policy) -> None:
    """The run's card says whether the model has one."""
    for place in ("", "model.language_model"):
        policy.card = policy.card.model_copy(update={"text_model": place})
        arguments = engine_arguments(policy, MODEL, VllmSettings(), sleeps=False)
        assert arguments["language_model_only"] == (place != "")


def test_logits_are_requested_in_float32_instead_of_bfloat16(policy: Policy) -> None:
    """In addition to other overrides, unless the settings choose the type."""
    for own, expected in (
        ({}, {"head_dtype": "float32"}),
        ({"rope_theta": 1e6}, {"head_dtype": "float32", "rope_theta": 1e6}),
        ({"head_dtype": "model"}, {"head_dtype": "model"}),
    ):
        settings = VllmSettings(extra={"hf_overrides": own} if own else {})
        assert engine_arguments(on_gpu(policy), MODEL, settings, False)["hf_overrides"] == expected


def test_logits_in_float32_are_given_up_where_vllm_refuses_them(
    policy: Policy, vllm: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For instance with a quantized output layer; the log says so."""
    vllm.fail["start"] = [RuntimeError("only supported for an unquantized lm_head")]
    settings = VllmSettings(extra={"hf_overrides": {"rope_theta": 1e6}})
    with caplog.at_level(logging.INFO):
        VllmEngine(on_gpu(policy), MODEL, tmp_path, settings).close()
    assert [each["hf_overrides"] for each in vllm.started] == [
        {"head_dtype": "float32", "rope_theta": 1e6},
        {"rope_theta": 1e6},
    ]
    assert "trying without" in caplog.text


def test_a_vllm_that_does_not_start_is_reported_as_invalid_settings(
    policy: Policy, vllm: FakeEngine, tmp_path: Path
) -> None:
    """The error quotes vLLM, and there is no second try without anything to give up."""
    vllm.fail["start"] = [TypeError("no KV cache")]
    with pytest.raises(InvalidSettings, match=r"no KV cache.*vllm\.extra\.gpu_memory_utilization"):
        VllmEngine(policy, MODEL, tmp_path, VllmSettings())
    assert len(vllm.started) == 1
