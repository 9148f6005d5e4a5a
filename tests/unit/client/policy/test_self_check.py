"""The self-check of each loaded model: which path computes what the model's own pass does?"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2PreTrainedModel,
)

from pubswap_client.policy import attention, self_check
from pubswap_client.policy import attention_kernels as kernels
from pubswap_client.policy.logprobs import Scores, score_pack
from pubswap_client.policy.packing import Pack
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import (
    check_packed_path,
    head_is_linear,
)
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import RunSettings
from support.client.architectures import SETTINGS, random_policy

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    "fixture", ["tiny_qwen3", "tiny_llama", "tiny_untied_qwen2", "tiny_sliding_mistral"]
)
def test_the_usual_architectures_are_packed(
    request: pytest.FixtureRequest,
    fixture: str,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
) -> None:
    """By a wide margin in float32; adapter and model are left unchanged."""
    folder = request.getfixturevalue(fixture)
    policy = Policy.load(folder, card_of(folder), run_settings, device="cpu")
    adapter, config = policy.adapter(), policy.model.config.to_dict()
    verdict = check_packed_path(policy)
    assert (policy.path, policy.linear_head) == ("portable", True)
    assert verdict.difference.scores < 1e-5
    assert verdict.difference.gradients < 1e-5
    assert verdict.difference.leak == 0
    assert all((policy.adapter()[name] == adapter[name]).all() for name in adapter)
    assert policy.model.config.to_dict() == config
    assert all(factor.grad is None for factor in policy.factors())


def top_left(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """The mask of torch's is_causal: query i sees the first i keys."""
    return torch.ones((queries, keys), dtype=torch.bool, device=device).tril()


def one_ahead(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """A mask in which each query also sees the next token."""
    return torch.ones((queries, keys), dtype=torch.bool, device=device).tril(keys - queries + 1)


def no_window(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    return torch.ones((queries, keys), dtype=torch.bool, device=device).tril(keys - queries)


@pytest.mark.parametrize(
    ("dtype", "spread"), [(torch.float32, 0.02), (torch.bfloat16, 0.02), (torch.bfloat16, 0.3)]
)
@pytest.mark.parametrize(
    ("name", "fault"), [("Qwen3", top_left), ("Qwen3", one_ahead), ("Mistral", no_window)]
)
def test_a_wrong_mask_is_found(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    spread: float,
    name: str,
    fault: Callable[..., torch.Tensor],
) -> None:
    """Even in half precision alone, as kernels for it are, and where all differences are small."""
    monkeypatch.setattr("pubswap_client.policy.self_check._wrong_in_float32", lambda *_: {})
    policy = random_policy(name, dtype, initializer_range=spread)
    assert check_packed_path(policy).path == "portable"
    monkeypatch.setattr(kernels, "causal_mask", fault)
    verdict = check_packed_path(policy)
    assert policy.path == verdict.path == "padded"
    assert "not packed, portable attention: off by" in verdict.refused[0]


def shifted(part: Pack) -> Pack:
    """Each response one position too late."""
    positions = part.position_ids.clone()
    for span in part.tree.spans:
        if span.prefix_end > span.prefix_start:
            positions[:, span.start : span.end] += 1
    return replace(part, position_ids=positions)


def scaled(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The kernel with scores that are 5 % too large."""

    def wrong(query: Any, key: Any, value: Any, tree: Any, scale: float, window: Any) -> Any:
        return kernel(query, key, value, tree, 1.05 * scale, window)

    return wrong


def plant(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """1 % of the log-probabilities, one position, or 5 % of the scale."""

    def wrong(policy: Policy, part: Pack, temperature: float) -> Scores:
        part = shifted(part) if fault == "positions" else part
        scores = score_pack(policy, part, temperature)
        return Scores(scores.logprobs * (1.01 if fault == "log-probabilities" else 1.0))

    monkeypatch.setattr("pubswap_client.policy.self_check.packed_kernels", lambda *_: ("portable",))
    if fault == "scale":
        monkeypatch.setitem(attention.KERNELS, "portable", scaled(kernels.portable))
    else:
        monkeypatch.setattr("pubswap_client.policy.self_check.score_pack", wrong)


def refusal(policy: Policy) -> str:
    try:
        verdict = check_packed_path(policy)
    except InvalidSettings as error:  # both paths score by the wrong function
        return error.detail
    assert verdict.path == "padded"
    return verdict.refused[0]


FAULTS = ["log-probabilities", "positions", "scale"]


@pytest.mark.parametrize("spread", [0.02, 0.3])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_small_error_is_found(monkeypatch: pytest.MonkeyPatch, fault: str, spread: float) -> None:
    """In float32, in small weights as well."""
    policy = random_policy("Qwen3", torch.float32, initializer_range=spread)
    plant(monkeypatch, fault)
    assert "not packed, portable attention: off by" in refusal(policy)


@pytest.mark.parametrize("spread", [0.02, 0.3])
@pytest.mark.parametrize("fault", FAULTS)
def test_rounding_to_bfloat16_hides_no_small_error(
    monkeypatch: pytest.MonkeyPatch, fault: str, spread: float
) -> None:
    """The first layers are compared in float32, and the model keeps its layers and their bits."""
    policy = random_policy("Qwen3", torch.bfloat16, initializer_range=spread, num_hidden_layers=4)
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    plant(monkeypatch, fault)
    assert "not packed, portable attention: in float32, off by" in refusal(policy)
    after = policy.model.state_dict()
    assert {name: tensor.dtype for name, tensor in after.items()} == {
        name: tensor.dtype for name, tensor in before.items()
    }
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_model_trains_where_its_first_layers_do_not_fit_in_float32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is compared in its own dtype, and its weights keep theirs."""
    policy = random_policy("Qwen3", torch.bfloat16)

    def full(_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "float", full)
        assert self_check._wrong_in_float32(policy, checkpointing=False) == {}
    assert "for want of memory" in caplog.text
    assert check_packed_path(policy).path == "portable"
    assert policy.dtype == policy.head()[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_soft_capping_that_is_ignored_is_found(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Gemma2 caps its scores: refused by the argument's name, and otherwise by the numbers.

    So it is when transformers gives it SDPA, which cannot cap, as up to version 5.20.
    """
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    policy = random_policy("Gemma 2", dtype)
    assert "use softcap" in check_packed_path(policy).refused[0]
    monkeypatch.setattr(attention, "HARMLESS", attention.HARMLESS | {"softcap"})
    verdict = check_packed_path(policy)
    assert verdict.path == "padded"
    assert "off by" in verdict.refused[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["Llama, dynamic RoPE", "Phi-3, longrope"])
def test_rotations_that_change_with_the_longest_row_are_found(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype
) -> None:
    """They matter only if a run's rows are longer than the original context, and that is
    refused.
    """
    policy = random_policy(name, dtype)
    with pytest.raises(InvalidSettings, match="to at most 64 together, not 200"):
        check_packed_path(policy)
    monkeypatch.setattr("pubswap_client.policy.self_check.check_positions", lambda *_: None)
    assert "off by" in check_packed_path(policy).refused[0]
    short = SETTINGS.model_dump()
    short["grpo"] |= {"max_prompt_tokens": 30, "max_response_tokens": 30}
    policy.settings = RunSettings.model_validate(short)
    assert check_packed_path(policy).path == "portable"


@pytest.mark.parametrize("name", ["Granite", "Cohere", "Gemma 2"])
def test_a_head_that_scales_or_caps_its_logits_is_not_linear(name: str) -> None:
    """Qwen's logits are W h, so they need not be recomputed in the backward pass."""
    assert not head_is_linear(random_policy(name, torch.bfloat16))
    assert head_is_linear(random_policy("Qwen3", torch.bfloat16))


def raising(*_: Any) -> torch.Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nStack of calls")


@pytest.fixture
def three_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A GPU's kernels to try, all replaced by the portable one."""
    found = dict.fromkeys(("flash", "flex", "portable"), kernels.portable)
    monkeypatch.setattr(attention, "KERNELS", found)
    monkeypatch.setattr("pubswap_client.policy.self_check.packed_kernels", lambda *_: tuple(found))
    yield found


@pytest.mark.parametrize("broken", [0, 1, 2, 3])
def test_a_kernel_that_raises_is_passed_over(
    three_kernels: dict[str, Any], caplog: pytest.LogCaptureFixture, broken: int
) -> None:
    """The order is flash, FlexAttention, portable, padded; one log line gives the reasons."""
    for name in list(three_kernels)[:broken]:
        three_kernels[name] = raising
    policy = random_policy("Qwen3", torch.float32)
    with caplog.at_level(logging.INFO, "pubswap_client.policy"):
        verdict = check_packed_path(policy)
    assert verdict.path == ("flash", "flex", "portable", "padded")[broken]
    assert len(verdict.refused) == broken
    (said,) = [record for record in caplog.records if "path" in record.message]
    assert said.levelname == ("WARNING" if broken else "INFO")
    assert said.message.count("FlashAttention only supports Ampere GPUs or newer.") == broken
    assert "Stack" not in said.message
    assert ("several times faster" in verdict.advice) == (broken == 3)


def test_a_model_without_a_working_path_is_refused(
    monkeypatch: pytest.MonkeyPatch, three_kernels: dict[str, Any]
) -> None:
    """With our own error, whatever the kernels raised."""
    for name in three_kernels:
        three_kernels[name] = raising
    monkeypatch.setattr("pubswap_client.policy.policy.padded_hidden", raising)
    with pytest.raises(InvalidSettings, match=r"Qwen3ForCausalLM cannot be trained: .*models\.md"):
        check_packed_path(random_policy("Qwen3", torch.float32))


def test_an_adapter_whose_scale_overflows_is_refused_by_its_settings(
    tiny_qwen3: Path, card_of: Callable[[Path], ModelCard], run_settings: RunSettings
) -> None:
    """The model is not blamed for differences that are NaN."""
    lora = run_settings.lora.model_copy(update={"alpha": 1e9})
    settings = run_settings.model_copy(update={"lora": lora})
    policy = Policy.load(tiny_qwen3, card_of(tiny_qwen3), settings, device="cpu")
    with pytest.raises(InvalidSettings, match=r"lora\.alpha / lora\.rank = .*about twice the rank"):
        check_packed_path(policy)


def test_adapters_that_the_model_bypasses_are_refused_by_name() -> None:
    """They get no gradient. One of zero is no fault."""
    policy = random_policy("Qwen3", torch.float32)
    layer = policy.decoder.layers[1].mlp.down_proj
    adapted = layer.forward
    layer.forward = lambda x: 0 * adapted(x)
    assert check_packed_path(policy).path == "portable"
    layer.forward = layer.base_layer.forward
    said = r"bypasses 1 of its 14 adapters, such as that of model\.layers\.1\.mlp\.down_proj\. "
    with pytest.raises(InvalidSettings, match=said + r'.*= \["gate_proj", .*"v_proj"\]'):
        check_packed_path(policy)


def test_whatever_a_model_raises_in_its_own_pass_becomes_one_sentence() -> None:
    """The model is named."""
    policy = random_policy("Qwen3", torch.float32)
    policy.decoder.layers[1].mlp.forward = raising
    with pytest.raises(InvalidSettings, match=r"^Qwen3ForCausalLM cannot be trained: FlashA") as it:
        check_packed_path(policy)
    assert isinstance(it.value.__cause__, RuntimeError)
