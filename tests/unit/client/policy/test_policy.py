"""The policy: loading adapters, the layout, the reference, prompts and texts."""

import inspect
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from pubswap_client.base_model import prompt_limit
from pubswap_client.doctor.model import shown_example
from pubswap_client.policy.policy import Dtype, Policy, base_dtype
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_client.training.memory import Device, estimate_memory
from pubswap_protocol.errors import InvalidAdapter, InvalidProblems, InvalidSettings
from pubswap_protocol.methods.rules import FFA
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import NO_TEMPLATE_OPTIONS, RunSettings
from pubswap_protocol.tensors.adapter import Adapter, AdapterFile, encode_adapter, initial_adapter
from pubswap_protocol.tensors.responses import Response
from support.client import dense

CardOf = Callable[[Path], ModelCard]
IDS = torch.tensor([[0, 5, 6, 7], [4, 5, 6, 7]])


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(input_ids=IDS, logits_to_keep=2).logits


@pytest.mark.parametrize("folder", ["tiny_qwen3", "tiny_llama"])
def test_an_adapter_comes_back_as_it_was_loaded(
    folder: str,
    request: pytest.FixtureRequest,
    card_of: CardOf,
    run_settings: RunSettings,
    random_adapter: Callable[..., Adapter],
) -> None:
    """PEFT's tensors equal the layout's bit for bit, in name, shape and value."""
    path = request.getfixturevalue(folder)
    policy = Policy.load(path, card_of(path), run_settings, device="cpu")
    adapter = random_adapter(policy.card.layout, seed=5)
    before = logits(policy)
    policy.load_adapter(adapter)
    found = policy.adapter()
    assert list(found) == sorted(policy.card.layout.tensors)
    for name, array in found.items():
        assert array.dtype == np.float32
        assert np.array_equal(array, adapter[name])
    assert not torch.allclose(logits(policy), before, atol=1e-3)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_the_layout_is_that_of_pefts_all_linear(
    tiny_qwen3: Path, card_of: CardOf, run_settings: RunSettings
) -> None:
    """The safetensors headers give the same layers as PEFT's own 'all-linear'."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_qwen3)
    config = LoraConfig(r=run_settings.lora.rank, target_modules="all-linear")
    state = get_peft_model_state_dict(get_peft_model(model, config))
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes == card_of(tiny_qwen3).layout.tensors


def test_a_returned_adapter_is_a_copy(policy: Policy) -> None:
    """Changing it does not change the policy, and training does not change it."""
    given = policy.adapter()
    name = next(iter(given))
    given[name] += 1
    assert not np.array_equal(policy.adapter()[name], given[name])


def test_trainable_are_the_factors_and_nothing_else(policy: Policy) -> None:
    """They are sorted by name, in float32."""
    parameters = policy.trainable()
    shapes = [policy.card.layout.tensors[name] for name in sorted(policy.card.layout.tensors)]
    assert [tuple(parameter.shape) for parameter in parameters] == shapes
    assert all(parameter.dtype == torch.float32 for parameter in parameters)
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert trained == policy.card.layout.parameters


def test_the_first_adapter_and_the_reference_are_the_base_model(policy: Policy) -> None:
    """B = 0 changes nothing, and reference() disables any adapter."""
    adapted = logits(policy)
    with policy.reference():
        base = logits(policy)
    assert torch.equal(logits(policy), adapted)
    policy.load_adapter(initial_adapter(policy.card.layout, seed=0))
    assert torch.equal(logits(policy), base)
    assert not torch.allclose(adapted, base, atol=1e-3)
    assert all(parameter.requires_grad for parameter in policy.trainable())


def test_added_adapters_move_the_base_model_and_not_the_reference(
    policy: Policy, tmp_path: Path, random_adapter: Callable[..., Adapter]
) -> None:
    """W = W0 + (alpha / r) sum B A, bitwise equal whether added at once or round by round."""
    layout, lora = policy.card.layout, policy.settings.lora
    stacks = []
    for seed in (2, 3):
        path = tmp_path / f"{seed}.safetensors"
        path.write_bytes(encode_adapter(layout, random_adapter(layout, seed)))
        stacks.append(AdapterFile(path, layout))
    name = sorted(layout.tensors)[0]
    module = policy.model.get_submodule(name.removesuffix(".lora_A.weight"))
    before = module.base_layer.weight.detach().clone()
    with policy.reference():
        base = logits(policy)
    for known in ([], stacks[:1], stacks):
        policy.rebase(known)
    moved = logits(policy)
    product = sum(dense.products(stack.load())[name] for stack in stacks)
    change = (module.base_layer.weight - before).detach().numpy()
    assert np.allclose(change, lora.alpha / lora.rank * product, atol=1e-6)
    with policy.reference():
        assert torch.equal(logits(policy), base)
    assert torch.equal(logits(policy), moved)
    policy.rebase([])
    assert torch.equal(module.base_layer.weight, before)
    policy.rebase(stacks)
    assert torch.equal(logits(policy), moved)


def test_under_ffa_b_alone_is_trained(
    tiny_qwen3: Path, card_of: CardOf, run_settings: RunSettings
) -> None:
    """The adapter still has all factors; the optimizer gets the B factors, sorted by name."""
    rules = run_settings.aggregation.model_copy(update={"rule": FFA()})
    settings = run_settings.model_copy(update={"aggregation": rules})
    policy = Policy.load(tiny_qwen3, card_of(tiny_qwen3), settings, device="cpu")
    names = policy.trained_names()
    assert names == sorted(name for name in policy.card.layout.tensors if "lora_B" in name)
    shapes = [policy.card.layout.tensors[name] for name in names]
    assert [tuple(parameter.shape) for parameter in policy.trainable()] == shapes
    assert set(policy.adapter()) == set(policy.card.layout.tensors)
    assert len(policy.factors()) == 2 * len(names)
    for inside in (policy.reference, policy.merged):
        with inside():
            pass
        assert policy.trained_names() == names


def base_weights(policy: Policy) -> dict[str, torch.Tensor]:
    """The frozen weight of each adapted module, by the name of its A."""
    names = [name for name in sorted(policy.card.layout.tensors) if "lora_A" in name]
    return {
        name: policy.model.get_submodule(
            name.removesuffix(".lora_A.weight")
        ).base_layer.weight.detach()
        for name in names
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_weights_are_the_sum_rounded_once(policy: Policy, dtype: torch.dtype) -> None:
    """W + (alpha / r) B A, against float64, with the same result each time."""
    for name in base_weights(policy):
        policy.model.get_submodule(name.removesuffix(".lora_A.weight")).base_layer.to(dtype)
    scale = policy.settings.lora.alpha / policy.settings.lora.rank
    before = {name: weight.clone() for name, weight in base_weights(policy).items()}
    products = dense.products(policy.adapter())
    for _ in range(2):
        with policy.merged():
            merged = {name: weight.clone() for name, weight in base_weights(policy).items()}
        for name, product in products.items():
            exact = before[name].double() + scale * torch.from_numpy(product)
            assert merged[name].dtype == dtype
            rounding = (exact.to(dtype).double() - exact).abs().max()
            assert (merged[name].double() - exact).abs().max() <= 1.01 * rounding + 1e-6
            assert not torch.equal(merged[name], before[name])


def test_the_merged_policy_computes_the_same_with_its_adapter_off(policy: Policy) -> None:
    """Up to rounding; the adapter is not added twice."""
    adapted = logits(policy)
    with policy.merged():
        assert torch.allclose(logits(policy), adapted, atol=1e-4)
        assert not torch.equal(logits(policy), adapted)
    assert torch.equal(logits(policy), adapted)


def test_after_merging_the_base_has_its_own_tensors_again(policy: Policy) -> None:
    """Even after an error, they are the original tensors and bitwise unchanged."""
    before = base_weights(policy)
    copies = {name: weight.clone() for name, weight in before.items()}

    def fail() -> None:
        raise KeyError

    for work in (str, fail):
        with suppress(KeyError), policy.merged():
            work()
        for name, weight in base_weights(policy).items():
            assert weight.data_ptr() == before[name].data_ptr()
            assert torch.equal(weight, copies[name])


def test_a_rebased_model_is_merged_from_its_adapters(
    policy: Policy, tmp_path: Path, random_adapter: Callable[..., Adapter]
) -> None:
    """So it samples from the model that is trained."""
    layout = policy.card.layout
    path = tmp_path / "added.safetensors"
    path.write_bytes(encode_adapter(layout, random_adapter(layout, seed=2)))
    before = logits(policy)
    policy.rebase([AdapterFile(path, layout)])
    rebased = logits(policy)
    assert not torch.allclose(rebased, before, atol=1e-2)
    with policy.merged():
        assert torch.allclose(logits(policy), rebased, atol=1e-4)


@pytest.mark.parametrize("damage", ["missing", "extra", "shape"])
def test_an_adapter_of_another_layout_is_refused(policy: Policy, damage: str) -> None:
    """Nothing is loaded if a tensor is missing, surplus, or of another shape."""
    adapter = policy.adapter()
    name = next(iter(adapter))
    if damage == "missing":
        del adapter[name]
    elif damage == "extra":
        adapter["more"] = adapter[name]
    else:
        adapter[name] = adapter[name][:1]
    with pytest.raises(InvalidAdapter, match="layout"):
        policy.load_adapter(adapter)


def test_a_model_without_the_runs_layers_is_refused(
    tiny_qwen3: Path, tiny_deep_qwen3: Path, card_of: CardOf, run_settings: RunSettings
) -> None:
    """The message counts the missing modules and names the first."""
    missing = r"lacks 7 of the 21 linear layers that the run adapts, first 'model\.layers\.2"
    with pytest.raises(InvalidSettings, match=missing):
        Policy.load(tiny_qwen3, card_of(tiny_deep_qwen3), run_settings, device="cpu")


def test_a_model_with_other_shapes_is_refused(
    tiny_qwen3: Path, tiny_deep_qwen3: Path, card_of: CardOf, run_settings: RunSettings
) -> None:
    """Modules with the run's names but other widths do not fit."""
    with pytest.raises(InvalidAdapter, match="mlp"):
        Policy.load(tiny_deep_qwen3, card_of(tiny_qwen3), run_settings, device="cpu")


def test_a_gpu_that_is_not_there_is_refused(
    tiny_qwen3: Path,
    card_of: CardOf,
    run_settings: RunSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """device = 'cuda' never falls back to the CPU; 'auto' does."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidSettings, match="no GPU"):
        Policy.load(tiny_qwen3, card_of(tiny_qwen3), run_settings, device="cuda")
    assert Policy.load(tiny_qwen3, card_of(tiny_qwen3), run_settings).device.type == "cpu"


@pytest.mark.parametrize(
    ("dtype", "cpu", "gpu"),
    [
        ("auto", torch.float32, torch.bfloat16),
        ("float32", torch.float32, torch.float32),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
    ],
)
def test_the_base_has_the_chosen_precision_and_the_factors_float32(
    dtype: Dtype,
    cpu: torch.dtype,
    gpu: torch.dtype,
    tiny_qwen3: Path,
    card_of: CardOf,
    run_settings: RunSettings,
) -> None:
    """By default bfloat16 on a GPU and float32 on a CPU."""
    card = card_of(tiny_qwen3)
    policy = Policy.load(tiny_qwen3, card, run_settings, device="cpu", dtype=dtype)
    assert policy.dtype == policy.head()[0].dtype == cpu
    assert {factor.dtype for factor in policy.factors()} == {torch.float32}
    assert base_dtype(dtype, cuda=True) == gpu


def test_a_prompt_is_encoded_plainly_without_a_template(policy: Policy) -> None:
    """This tokenizer has one token for each character."""
    assert policy.encode("1+0") == [4, 13, 3]


def test_the_chat_template_is_used_if_there_is_one_and_the_run_wants_it(policy: Policy) -> None:
    """'auto' follows the tokenizer; 'none' never uses a template."""
    policy._tokenizer._full.chat_template = "{{ messages[0]['content'] }}="
    assert policy.encode("1+0") == [4, 13, 3, policy.encode("=")[0]]
    policy.settings = policy.settings.model_copy(update={"chat_template": "none"})
    assert policy.encode("1+0") == [4, 13, 3]


def test_the_templates_options_are_the_runs(policy: Policy) -> None:
    """They apply to the trainer's prompts, the length limit's count and the doctor's example."""
    tokenizer = policy._tokenizer
    tokenizer._full.chat_template = (
        "{{ messages[0]['content'] }}{% if ending is defined %}{{ ending }}{% endif %}"
        "{% if refuse is defined %}{{ raise_exception('no') }}{% endif %}"
    )
    assert policy.encode("1+0") == [4, 13, 3]

    def told(**options: object) -> RunSettings:
        return RunSettings.model_validate({"chat_template_options": options})

    policy.settings = told(ending="==")
    first, second = policy.encode("1+0")[3:]
    assert policy.encode("1+0") == [4, 13, 3, first, second] and first == second
    assert policy.prompt_limit.count("1+0") == 5
    assert "is 18 tokens" in shown_example(tokenizer, told(ending="==")).found
    with pytest.raises(InvalidSettings, match="chat template fails"):
        tokenizer.encode_for(told(refuse=True), "1+0")


def test_template_options_cannot_replace_our_own_arguments() -> None:
    """All parameters of transformers' apply_chat_template are reserved; other names go to the
    template.
    """
    own = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    assert own - {"self", "kwargs"} <= NO_TEMPLATE_OPTIONS
    for name in NO_TEMPLATE_OPTIONS:
        with pytest.raises(ValidationError, match=f"{name} is set by PubSwap"):
            RunSettings.model_validate({"chat_template_options": {name: True}})


def test_a_prompt_that_is_too_long_is_refused(policy: Policy) -> None:
    """The message gives its length and the limit."""
    assert len(policy.encode("1" * 40)) == 40
    with pytest.raises(InvalidProblems, match="41 tokens; this run takes at most 40"):
        policy.encode("1" * 41)


def test_texts_leave_out_special_tokens(policy: Policy) -> None:
    """The verifier gets the same text as from the coordinator's tokenizer alone."""
    tokens = np.array([4, 13, 3, 1], dtype=np.int32)
    assert policy.decode([Response(tokens, np.zeros(4, dtype=np.float32))]) == ["1+0"]


def test_no_code_of_a_base_model_is_run(
    tiny_qwen3: Path,
    card_of: CardOf,
    run_settings: RunSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that needs its own code is refused, without asking whether it may run."""
    folder, ran, card = tmp_path / "model", tmp_path / "ran", card_of(tiny_qwen3)
    shutil.copytree(tiny_qwen3, folder)
    config = json.loads((folder / "config.json").read_bytes())
    named = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "o", "auto_map": named}))
    tokenizer = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n")
    monkeypatch.setattr("builtins.input", lambda question: "y")
    with pytest.raises(InvalidSettings, match="custom code"):
        Policy.load(folder, card, run_settings, device="cpu")
    with pytest.raises(InvalidSettings, match="custom code"):
        prompt_limit(folder, run_settings)
    with pytest.raises(InvalidSettings, match="custom code"):
        awake, cpu = ClientSettings(vllm=VllmSettings(sleep=False)), Device("", False, 1, 1, 1)
        estimate_memory(awake, run_settings, card, folder, cpu)
    assert not ran.exists()
