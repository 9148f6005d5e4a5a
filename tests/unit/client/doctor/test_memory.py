"""The doctor's check of device and memory: estimates against measurements, and the advice."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_client.doctor.findings import Finding, Outcome
from pubswap_client.doctor.memory import in_memory, on_device
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_client.training.memory import Device, MemoryEstimate, estimate_memory, measure_device
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout

MEASURED = Path(__file__).parents[3] / "support" / "client" / "measured.py"
BIGGER: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.02,
    "vocab_size": 8000,
}
RUN = RunSettings.model_validate({"grpo": {"max_prompt_tokens": 64, "max_response_tokens": 192}})
GIB = 1 << 30
AT_HAND = 24 << 20


def measure(folder: Path, *arguments: str) -> dict[str, list[int]]:
    done = subprocess.run(
        [sys.executable, str(MEASURED), str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


@pytest.mark.full
def test_the_estimate_is_within_a_factor_of_two_on_the_demo_s_model() -> None:
    """Compared with the growth of a process that updates on 2,832 tokens at a time."""
    measured, estimated = measure(MODEL, "60", "6", "plain")["update"]
    assert measured / 2 <= estimated <= 2 * measured


@pytest.mark.full
def test_the_estimate_is_within_a_factor_of_two_on_a_bigger_model(
    make_model: Callable[..., Path],
) -> None:
    """For an update with gradient checkpointing, and for sampling.

    Sampling needs so little here that the comparison allows for the allocator's spare memory.
    """
    found = measure(make_model("qwen3", **BIGGER), "60", "3", "checkpointed")
    measured, estimated = found.pop("update")
    assert measured / 2 <= estimated <= 2 * measured
    for measured, estimated in found.values():
        assert measured / 2 - AT_HAND <= estimated <= 2 * measured + AT_HAND


def place(free: int, cuda: bool = True, count: int = 1) -> Device:
    return Device("a GPU" if cuda else "the CPU", cuda, free, 80 * GIB, count)


def look(settings: ClientSettings, there: Device) -> tuple[Finding, MemoryEstimate]:
    """The finding for the demo's model, and the estimate behind it."""
    card = model_card(MODEL, RUN.lora, "model", None)
    needs = estimate_memory(settings, RUN, card, MODEL, there)
    return in_memory(settings, there, needs), needs


def test_enough_memory_is_well_and_its_parts_are_named() -> None:
    """The parts are weights, adapter and optimizer, update, and sampling."""
    found, estimate = look(ClientSettings(), place(8 * GIB))
    assert found.outcome is Outcome.OK
    assert "weights 1.3 MB" in found.found
    assert estimate.peak == estimate.fixed + max(estimate.update, estimate.rollout)


def test_an_update_that_does_not_fit_has_settings_that_do() -> None:
    """Gradient checkpointing, or fewer tokens at a time."""
    settings = ClientSettings(micro_batch_tokens=8192)
    _, estimate = look(settings, place(8 * GIB))
    free = estimate.fixed + estimate.update // 2
    found, _ = look(settings, place(free))
    assert found.outcome is Outcome.WARNING
    assert "micro_batch_tokens below 8192" in found.advice
    assert "gradient_checkpointing" in found.advice
    for change in ({"gradient_checkpointing": True}, {"micro_batch_tokens": 4096}):
        mended = look(settings.model_copy(update=change), place(free))[1]
        assert mended.fixed + mended.update <= free


def test_sampling_that_does_not_fit_takes_fewer_rows() -> None:
    """The advice is the number to stay below."""
    settings = ClientSettings(micro_batch_tokens=256, gradient_checkpointing=True)
    there = place(8 * GIB, cuda=False)
    run = RUN.model_copy(update={"grpo": RUN.grpo.model_copy(update={"prompts_per_step": 64})})
    card = model_card(MODEL, run.lora, "model", None)
    needs = estimate_memory(settings, run, card, MODEL, there)
    tight = place(needs.fixed + needs.rollout // 2, cuda=False)
    found = in_memory(settings, tight, needs)
    assert found.outcome is Outcome.WARNING
    assert "rollout_rows below 512" in found.advice


QWEN3_1_7B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


@pytest.fixture
def real_shape(tmp_path: Path) -> tuple[Path, ModelCard]:
    """Qwen3-1.7B's config and card, without weights."""
    small = model_card(MODEL, RUN.lora, "model", None)
    rank, tensors = RUN.lora.rank, dict[str, tuple[int, ...]]()
    sizes = {"q_proj": (2048, 2048), "k_proj": (2048, 1024), "v_proj": (2048, 1024)}
    sizes |= {"o_proj": (2048, 2048), "gate_proj": (2048, 6144), "up_proj": (2048, 6144)}
    for layer in range(28):
        for name, (inner, outer) in (sizes | {"down_proj": (6144, 2048)}).items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{module}.lora_A.weight"] = (rank, inner)
            tensors[f"{module}.lora_B.weight"] = (outer, rank)
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **QWEN3_1_7B}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layout = AdapterLayout(tensors=tensors)
    return tmp_path, small.model_copy(update={"parameters": 1_720_000_000, "layout": layout})


def test_an_evaluator_s_batch_of_a_real_model_fits_a_gpu_of_80_gb(
    real_shape: tuple[Path, ModelCard],
) -> None:
    """512 rows of 2,200 tokens need 129 GB of keys and values, so fewer are sampled at a time."""
    run = RunSettings.model_validate(
        {"grpo": {"max_prompt_tokens": 152, "max_response_tokens": 2048}}
    )
    folder, card = real_shape
    there = Device("a GPU", cuda=True, free=79 * GIB, total=80 * GIB, count=1)

    def estimate(settings: ClientSettings) -> MemoryEstimate:
        return estimate_memory(settings, run, card, folder, there, evaluator=True)

    found = estimate(ClientSettings())
    keys_and_values = 2 * 28 * 8 * 128 * 2 * 2200
    assert 512 * keys_and_values > 1.2e11
    assert 100 < found.rows < 512
    assert found.rollout > found.rows * keys_and_values + 2 * 1.4e9  # plus the merged copy
    assert 60 * GIB < found.peak <= there.free
    assert found.update == 0
    assert found.factors == 4 * card.layout.parameters
    assert estimate(ClientSettings(rollout_rows=64)).rows == 64


def test_weights_that_do_not_fit_are_a_failure() -> None:
    """On GPUs the model can be sharded."""
    found, _ = look(ClientSettings(), place(1 << 20))
    assert found.outcome is Outcome.FAILURE
    assert "shard = true" in found.advice
    found, _ = look(ClientSettings(), place(1 << 20, cuda=False))
    assert found.outcome is Outcome.FAILURE


def test_a_vllm_that_does_not_sleep_always_needs_its_memory() -> None:
    """Asleep, it takes turns with the update; with a trainer on the CPU it is always awake."""
    awake, asleep = (
        ClientSettings(engine="vllm", vllm=VllmSettings(sleep=sleep)) for sleep in (False, True)
    )
    found, needs = look(awake, place(80 * GIB))
    assert (needs.engine, needs.rollout) == (int(0.4 * 80 * GIB), 0)
    assert "vLLM while it is not sampling 34.4 GB" in found.found
    found, needs = look(asleep, place(80 * GIB))
    assert needs.engine == 2 * GIB  # its CUDA context and graphs
    assert needs.engine + needs.rollout == int(0.4 * 80 * GIB)
    assert "vLLM while it is not sampling 2.1 GB" in found.found
    assert look(ClientSettings(engine="vllm"), place(GIB, cuda=False))[1].engine > GIB
    found, _ = look(awake, place(16 * GIB))
    assert "vllm.sleep" in found.advice


@pytest.mark.parametrize(("total", "awake"), [(141, True), (80, True), (48, False), (24, False)])
def test_vllm_stays_awake_where_it_and_the_trainer_fit(
    real_shape: tuple[Path, ModelCard], total: int, awake: bool
) -> None:
    """Qwen3-1.7B with rows of 3,072 tokens and two fifths of the GPU for vLLM, on common sizes of
    cards.
    """
    run = RunSettings.model_validate(
        {"grpo": {"max_prompt_tokens": 1024, "max_response_tokens": 2048}}
    )
    folder, card = real_shape
    size = total * 10**9
    there = Device("a GPU", cuda=True, free=size - GIB, total=size, count=1)

    def estimate(settings: ClientSettings) -> MemoryEstimate:
        return estimate_memory(settings, run, card, folder, there)

    needs = estimate(ClientSettings(engine="vllm"))
    assert needs.awake == awake
    assert needs == estimate(ClientSettings(engine="vllm", vllm=VllmSettings(sleep=not awake)))
    assert needs.peak < there.free
    if awake:
        assert needs.engine == int(0.4 * size)
        assert needs.tokens >= 8192


def test_shards_hold_less() -> None:
    """Each process holds its share, plus the layers that are gathered at the moment."""
    sharded = ClientSettings(shard=True, processes=8)
    whole, shared = (look(s, place(GIB))[1] for s in (ClientSettings(), sharded))
    assert shared.weights < whole.weights


def test_a_base_in_bfloat16_needs_half_the_memory() -> None:
    """It is a GPU's default, and a CPU's only if asked for."""
    half, cpu = ClientSettings(dtype="bfloat16"), place(8 * GIB, cuda=False)
    assert look(half, cpu)[1].weights * 2 == look(ClientSettings(), cpu)[1].weights
    assert look(ClientSettings(dtype="float32"), place(8 * GIB))[1].weights == (
        look(ClientSettings(), cpu)[1].weights
    )


def test_gpus_that_are_not_used_are_a_warning() -> None:
    """Too few of them end the trial step as they end a start."""
    assert on_device(ClientSettings(), place(GIB)).outcome is Outcome.OK
    found = on_device(ClientSettings(), place(GIB, count=4))
    assert found.outcome is Outcome.WARNING and "processes = 4" in found.advice


def test_the_cpu_is_found_and_a_missing_gpu_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requesting a missing GPU is a failure, with no fallback to the CPU."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = measure_device(ClientSettings())
    assert (found.cuda, found.count) == (False, 1)
    assert on_device(ClientSettings(), found).outcome is Outcome.OK
    with pytest.raises(InvalidSettings, match="no GPU"):
        measure_device(ClientSettings(device="cuda"))


@pytest.mark.parametrize(
    ("capable", "dtype", "said"),
    [(True, "auto", True), (True, "bfloat16", False), (False, "auto", False)],
)
def test_a_cpu_that_is_faster_in_bfloat16_is_named(
    monkeypatch: pytest.MonkeyPatch, capable: bool, dtype: Any, said: bool
) -> None:
    """Unless that is used already, or the CPU has no instructions for it."""
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"amx_bf16": capable}, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = ClientSettings(dtype=dtype)
    found = on_device(settings, measure_device(settings)).found
    assert found.endswith("; it is faster with dtype = 'bfloat16'") == said
