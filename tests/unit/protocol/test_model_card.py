"""A base model's identity, and the adapter layout derived from its file headers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pubswap_client.demo.demos import MODEL
from pubswap_protocol.errors import BaseModelMismatch, InvalidSettings
from pubswap_protocol.model import (
    check_positions,
    check_table,
    model_card,
    model_layout,
    model_vocabulary,
    target_modules,
)
from pubswap_protocol.settings import LoraSettings

WEIGHTS = "model.safetensors"
SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "eos_token_id": 1,
}
LORA = LoraSettings(rank=3, alpha=6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)),
        lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
        lambda: LlamaForCausalLM(LlamaConfig(**SMALL, tie_word_embeddings=False)),
    ],
    ids=["qwen3", "qwen2", "llama"],
)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_layout_is_peft_s_own(tmp_path: Path, make: Callable[[], PreTrainedModel]) -> None:
    """Names and shapes equal those of a real PEFT adapter on all linear layers."""
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(tmp_path)
    shutil.copy(MODEL / "tokenizer.json", tmp_path)
    card = model_card(tmp_path, LORA, "tiny", None)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    adapted = get_peft_model(model, LoraConfig(r=3, lora_alpha=6, target_modules="all-linear"))
    state = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    assert {name: tuple(t.shape) for name, t in state.items()} == card.layout.tensors
    assert card.parameters == parameters
    assert card.vocabulary == 32
    assert card.eos_token_ids == (1,)
    assert len(target_modules(card.layout)) == 2 * 7


def test_target_modules_may_be_named() -> None:
    """Only these layers are adapted, and a name without a match is refused."""
    lora = LoraSettings(target_modules=("q_proj", "v_proj"))
    layout = model_card(MODEL, lora, "m", None).layout
    assert all(".q_proj." in name or ".v_proj." in name for name in layout.tensors)
    with pytest.raises(InvalidSettings, match="matches no layer"):
        model_card(MODEL, LoraSettings(target_modules=("nothing",)), "m", None)


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("config.json", "config"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "weights"),
    ],
)
def test_models_differ_when_a_file_does(tmp_path: Path, file: str, part: str) -> None:
    """The message names the part that differs, and the model to use."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    card = model_card(MODEL, LORA, "m", "main")
    card.check_same(model_card(folder, LORA, "copy", None))
    data = bytearray((folder / file).read_bytes())
    data[-1:] = b"\n}" if file.endswith("json") and data[-1:] == b"}" else bytes([data[-1] ^ 1])
    if file.endswith("json"):
        data = bytearray(json.dumps(json.loads((folder / file).read_bytes()), indent=7).encode())
    (folder / file).write_bytes(bytes(data))
    with pytest.raises(BaseModelMismatch, match=f"in: {part}. The run uses m at revision main"):
        card.check_same(model_card(folder, LORA, "copy", None))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_is_no_model_is_refused(tmp_path: Path, file: str) -> None:
    """The message names the missing file."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    (folder / file).unlink()
    with pytest.raises(InvalidSettings, match=r"\.safetensors|not a Hugging Face model folder"):
        model_card(folder, LORA, "m", None)


def test_a_folder_without_a_config_has_no_layout_and_no_vocabulary(tmp_path: Path) -> None:
    """A recipe's check reads these alone, and lists the fault with its others."""
    for read in (lambda: model_layout(tmp_path, LORA), lambda: model_vocabulary(tmp_path)):
        with pytest.raises(InvalidSettings, match=r"not a Hugging Face model folder.*config\.json"):
            read()


def test_end_of_sequence_comes_from_the_generation_config_first(tmp_path: Path) -> None:
    """As a list or a number; a model without any is refused."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [4, 5]}')
    assert model_card(folder, LORA, "m", None).eos_token_ids == (4, 5)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    with pytest.raises(InvalidSettings, match="names no eos_token_id"):
        model_card(folder, LORA, "m", None)


def test_a_config_may_name_no_architecture(tmp_path: Path) -> None:
    """The card then gives the model type."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": None}))
    assert model_card(folder, LORA, "m", None).architecture == config["model_type"]


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "x"}'])
def test_a_config_that_is_no_model_s_is_refused(tmp_path: Path, text: str) -> None:
    """For broken JSON or a missing vocabulary, the message names the file."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    (folder / "config.json").write_text(text)
    with pytest.raises(InvalidSettings, match=r"config\.json is (damaged|not a model config)"):
        model_card(folder, LORA, "m", None)


def named_model(folder: Path, config: dict[str, object], *names: str) -> Path:
    """A folder with a config, and square weights with these names."""
    shutil.copytree(MODEL, folder)
    save_file({f"{name}.weight": np.zeros((4, 4), np.float32) for name in names}, folder / WEIGHTS)
    kept = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(kept | config))
    return folder


ATTENTION = [f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"]
EXPERT = "model.layers.0.mlp.experts.3.up_proj"


@pytest.mark.parametrize(
    ("config", "more", "said"),
    [
        ({"num_experts": 8}, [EXPERT], 'such as .*3.up_proj, which.*"q_proj", "v_proj"]'),
        ({"num_experts": 8}, ["model.layers.0.mlp.gate"], "mlp.gate, which are"),
        (
            {"model_type": "granitemoe", "num_local_experts": 8},
            ["model.layers.0.block_sparse_moe.router.layer"],
            r"moe\.router, which are expert routers.*\"q_proj\"",
        ),
        (
            {"model_type": "sarvam_moe"},
            ["model.layers.0.attention.query_key_value"],
            "splits or joins when it loads them",
        ),
        (
            {"model_type": "falcon_h1"},
            ["model.layers.0.mamba.out_proj"],
            r"bypassing any adapter\. Set",
        ),
        (
            {"model_type": "deepseek_v32"},
            ["model.layers.0.self_attn.indexer.wk"],
            r"indexer\.wk, which only choose the tokens .*\"q_proj\"",
        ),
        ({"model_type": "whisper"}, [], "A whisper model attends to speech"),
        ({"model_type": "mamba"}, [], "A mamba model has no key-value cache"),
        ({"model_type": "gpt2"}, [], r"stores transposed\. Use another model"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused_with_those_that_can(
    tmp_path: Path, config: dict[str, object], more: list[str], said: str
) -> None:
    """Names and config are enough; with the suggested layers, the card can be made."""
    folder = named_model(tmp_path / "model", config, *ATTENTION, *more)
    with pytest.raises(InvalidSettings, match=said):
        model_card(folder, LORA, "m", None)
    with pytest.raises(InvalidSettings, match=said):
        model_layout(folder, LORA)
    if more:
        chosen = LoraSettings(target_modules=("k_proj", "o_proj", "q_proj", "v_proj"))
        layout = model_card(folder, chosen, "m", None).layout
        assert target_modules(layout) == sorted(ATTENTION)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"rope_scaling": {"rope_type": "dynamic"}, "max_position_embeddings": 64}, 64),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 32}, 32),
        ({"rope_parameters": {"full": {"rope_type": "dynamic"}}, "max_position_embeddings": 9}, 9),
        ({"text_config": {"rope_scaling": {"type": "su"}, "max_position_embeddings": 8}}, 8),
        ({"rope_scaling": {"rope_type": "yarn"}, "max_position_embeddings": 64}, None),
        ({"rope_scaling": None, "max_position_embeddings": 64}, None),
    ],
)
def test_rows_beyond_the_context_of_a_dynamic_rope_are_refused(
    config: dict[str, object], limit: int | None
) -> None:
    """The message gives the longest possible rows; other rotary embeddings have no such limit."""
    check_positions(config, limit or 10**6)
    if limit:
        with pytest.raises(InvalidSettings, match=f"at most {limit} together, not {limit + 1}"):
            check_positions(config, limit + 1)


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"model_type": "opt", "max_position_embeddings": 64}, 64),
        ({"model_type": "gpt_bigcode", "n_positions": 32}, 32),
        ({"model_type": "mpt", "max_seq_len": 16}, 16),
        ({"model_type": "roberta", "max_position_embeddings": 66, "pad_token_id": 1}, 64),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 66}, 64),
        ({"text_config": {"model_type": "opt", "max_position_embeddings": 8}}, 8),
        ({"model_type": "llama", "max_position_embeddings": 64}, None),
        ({"model_type": "jamba", "max_position_embeddings": 64}, None),
    ],
)
def test_rows_beyond_a_table_of_positions_are_refused(
    config: dict[str, object], limit: int | None
) -> None:
    """Positions that a model computes, or does not have, have no such limit."""
    check_table(config, limit or 10**6)
    if limit:
        with pytest.raises(InvalidSettings, match=f"has {limit} positions.*at most {limit} tog"):
            check_table(config, limit + 1)


def sharded(folder: Path) -> Path:
    """The model in two files with an index."""
    shutil.copytree(MODEL, folder)
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    weight_map: dict[str, str] = {}
    for number, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("copy", [sharded, lambda folder: shutil.copytree(MODEL, folder)])
def test_weights_are_those_that_transformers_loads(
    tmp_path: Path, copy: Callable[[Path], Path]
) -> None:
    """A second copy under other names is ignored, as in Mistral's folders."""
    folder = copy(tmp_path / "model")
    card = model_card(folder, LORA, "m", None)
    assert card.layout == model_card(MODEL, LORA, "m", None).layout
    wq = np.zeros((4, 4), np.float32)
    save_file({"layers.0.attention.wq.weight": wq}, folder / "consolidated.safetensors")
    assert model_card(folder, LORA, "m", None) == card
    assert model_layout(folder, LORA) == card.layout


@pytest.mark.parametrize("parts", [["a"], {"a": 5}, None])
def test_an_index_that_names_no_files_is_refused(tmp_path: Path, parts: object) -> None:
    """Even though it is valid JSON."""
    folder = sharded(tmp_path / "model")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": parts}))
    with pytest.raises(InvalidSettings, match="weight_map names no files"):
        model_layout(folder, LORA)


def test_a_missing_file_of_several_is_named(tmp_path: Path) -> None:
    """An interrupted download lacks files that its index names."""
    folder = sharded(tmp_path / "model")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InvalidSettings, match=r"has no model-00002-of-00002\.safetensors"):
        model_card(folder, LORA, "m", None)


@pytest.mark.parametrize(
    "damaged",
    [
        lambda data: data[:-1],  # an interrupted download
        lambda data: data[:100],
        lambda data: b"",
        lambda data: b"version https://git-lfs.github.com/spec/v1\n",
    ],
    ids=["cut", "cut in its header", "empty", "a pointer of git-lfs"],
)
def test_weights_that_are_not_all_there_are_refused(
    tmp_path: Path, damaged: Callable[[bytes], bytes]
) -> None:
    """No member could have the same weights; the message names the file and what to do."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    (folder / WEIGHTS).write_bytes(damaged((MODEL / WEIGHTS).read_bytes()))
    for read in (lambda: model_card(folder, LORA, "m", None), lambda: model_layout(folder, LORA)):
        with pytest.raises(InvalidSettings, match=r"model\.safetensors .*ownload it again"):
            read()


def test_limits_of_members_files_are_not_limits_of_base_models(tmp_path: Path) -> None:
    """Any dtype, five dimensions, empty tensors, and more tensors than an adapter may have."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    more: dict[str, torch.Tensor] = {f"unused.{n}": torch.ones(1) for n in range(4200)}
    more |= {
        "video.patch_embed.weight": torch.ones(2, 3, 2, 2, 2),
        "mask": torch.ones(4, 4, dtype=torch.bool),
        "small": torch.ones(4).to(torch.float8_e4m3fn),
        "empty": torch.ones(0, 4),
    }
    save_torch({**load_torch(folder / WEIGHTS), **more}, folder / WEIGHTS, {"format": "pt"})
    expected = model_card(MODEL, LORA, "m", None).layout
    assert model_card(folder, LORA, "m", None).layout == expected


def test_only_an_incomplete_file_is_to_be_downloaded_again(tmp_path: Path) -> None:
    """A header that is not a model's is named as such."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    header = b'{"a": {"shape": 5}}'
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InvalidSettings, match="is not a safetensors file") as refusal:
        model_card(folder, LORA, "m", None)
    assert "ownload" not in refusal.value.detail


@pytest.mark.parametrize("inner", [False, True])
def test_quantized_models_are_refused_by_name(tmp_path: Path, inner: bool) -> None:
    """Whether the config of the model or that of its text says so."""
    method: dict[str, object] = {"quantization_config": {"quant_method": "bitsandbytes"}}
    wrapped = {"model_type": "llava", "text_config": {"model_type": "llama", **method}}
    folder = named_model(tmp_path / "model", wrapped if inner else method, *ATTENTION)
    with pytest.raises(InvalidSettings, match=r"has a quantization_config \(bitsandbytes\)"):
        model_card(folder, LORA, "m", None)


def test_an_adapter_among_the_base_model_s_files_is_refused(tmp_path: Path) -> None:
    """transformers would load it too, and no digest covers it."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    (folder / "adapter_config.json").write_text("{}")
    for read in (lambda: model_card(folder, LORA, "m", None), lambda: model_layout(folder, LORA)):
        with pytest.raises(InvalidSettings, match=r"has an adapter_config\.json"):
            read()


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_json_file_of_a_model_is_named(tmp_path: Path, text: str) -> None:
    """The generation config, and the config even if only the layout is needed."""
    folder = tmp_path / "copy"
    shutil.copytree(MODEL, folder)
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(InvalidSettings, match=r"generation_config\.json is damaged"):
        model_card(folder, LORA, "m", None)
    (folder / "config.json").write_text(text)
    with pytest.raises(InvalidSettings, match=r"/config\.json is damaged"):
        model_layout(folder, LORA)
