"""Loading a base model: all of its weights and nothing else, or one sentence."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from pubswap_client.policy.loading import load_model, refusing
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.merged_model import write_merged_model
from pubswap_protocol.errors import InvalidSettings, OutOfMemory, WrongState
from pubswap_protocol.model import ModelCard, check_table, model_card, target_modules
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter
from support.client.architectures import COMMON, SETTINGS
from support.client.models import save_model, save_tokenizer
from support.models.published import GEMMA_4, save_published

Weights = dict[str, torch.Tensor]


def change_weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "base", "qwen3", tie_word_embeddings=False)


def without(name: str) -> Callable[[Weights], Weights]:
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (without("lm_head.weight"), r"base lacks lm_head\.weight, so"),
        (without("model.norm.weight"), r"base lacks model\.norm\.weight, so"),
        (
            lambda weights: {k: v for k, v in weights.items() if "norm" not in k},
            r"lacks model\.layers.*, .*, .* and 6 more, so",
        ),
        (
            lambda weights: weights | {"model.norm.weight": torch.ones(17)},
            r"has other shapes than its config says of model\.norm\.weight, so",
        ),
        (
            lambda weights: weights | {"model.layers.0.self_attn.q_proj.bias": torch.ones(16)},
            r"has no layer for model\.layers\.0\.self_attn\.q_proj\.bias, so",
        ),
        (
            lambda weights: weights | {"model.layers.0.mlp.gate.weight": torch.ones(4, 16)},
            r"has no layer for model\.layers\.0\.mlp\.gate\.weight, so",
        ),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused_by_name(
    folder: Path, change: Callable[[Weights], Weights], match: str
) -> None:
    """Missing, ill-shaped and surplus ones, also when a merged model is exported."""
    change_weights(folder, change)
    card = model_card(folder, SETTINGS.lora, "m", None)
    with pytest.raises(InvalidSettings, match=match):
        Policy.load(folder, card, SETTINGS, device="cpu")
    adapter = encode_adapter(card.layout, initial_adapter(card.layout, 1))
    with pytest.raises(InvalidSettings, match=match):
        write_merged_model(folder.parent / "merged", adapter, SETTINGS.lora, card, folder)


def test_a_published_model_without_a_weight_of_its_text_or_vision_is_not_merged(
    tmp_path: Path,
) -> None:
    """The published class is loaded as strictly as the text model."""
    published = save_published(tmp_path, "llava")
    change_weights(tmp_path, without(sorted(load_file(tmp_path / "model.safetensors"))[0]))
    with pytest.raises(InvalidSettings, match="lacks"):
        load_model(tmp_path, "auto", type(published))


def test_tied_weights_need_not_be_in_the_files_and_a_copy_may_be(tmp_path: Path) -> None:
    """transformers ties them again."""
    save_model(tmp_path, "qwen3", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    alone = load_model(tmp_path, torch.float32)
    change_weights(
        tmp_path,
        lambda weights: weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()},
    )
    assert torch.equal(load_model(tmp_path, torch.float32).lm_head.weight, alone.lm_head.weight)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "mistral", "granite"])
def test_a_model_of_more_layers_than_its_config_says_is_refused(tmp_path: Path, kind: str) -> None:
    """Before a run has it: a smaller sibling's config.json would train a part of the model."""
    save_model(tmp_path, kind)
    model_card(tmp_path, SETTINGS.lora, "m", None)
    change_config(tmp_path, num_hidden_layers=1, layer_types=None)
    said = r"files have model\.layers\.1, and its config\.json says that it has 1 layers"
    with pytest.raises(InvalidSettings, match=said):
        model_card(tmp_path, SETTINGS.lora, "m", None)
    with pytest.raises(InvalidSettings, match=said):
        load_model(tmp_path, torch.float32)


def test_what_transformers_does_not_load_is_named_once_and_not_adapted(
    folder: Path, run_settings: RunSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """Layers that predict a second token, and masks."""
    layers = "mtp.layers.0.self_attn.q_proj.weight", "model.layers.2.eh_proj.weight"
    extra = *layers, "model.layers.0.self_attn.bias", "model.layers.1.self_attn.masked_bias"
    change_weights(folder, lambda weights: weights | {n: torch.ones(16, 16) for n in extra})
    card = model_card(folder, run_settings.lora, "m", None)
    with caplog.at_level(logging.INFO, "pubswap_client.policy"):
        policy = Policy.load(folder, card, run_settings, device="cpu")
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.endswith(f": {', '.join([*extra[2:], extra[1]])} and 1 more.")
    assert not [name for name in policy.trained_names() if "mtp" in name or "layers.2" in name]


def test_keys_of_layers_that_use_those_of_earlier_layers_are_not_adapted(tmp_path: Path) -> None:
    """Gemma 3n and small Gemma 4 are published with them, and transformers drops them."""
    layers = {"num_hidden_layers": 4, "num_kv_shared_layers": 2}
    layers |= {"layer_types": 2 * GEMMA_4["layer_types"]}
    config = AutoConfig.for_model("gemma4_text", **COMMON | GEMMA_4 | layers)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)

    def published(weights: Weights) -> Weights:
        first = {k: v for k, v in weights.items() if re.search(r"self_attn\.[kv]_", k)}
        later = {re.sub(r"\d", lambda n: str(int(n[0]) + 2), k): v for k, v in first.items()}
        return weights | {name: value.clone() for name, value in later.items()}

    change_weights(tmp_path, published)
    card = model_card(tmp_path, SETTINGS.lora, "m", None)
    policy = Policy.load(tmp_path, card, SETTINGS, device="cpu")
    assert check_packed_path(policy)
    keys = [name for name in target_modules(card.layout) if name.endswith("k_proj")]
    assert keys == [f"model.layers.{number}.self_attn.k_proj" for number in (0, 1)]


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_the_attention_that_a_config_names_is_not_used(
    folder: Path, run_settings: RunSettings, key: str
) -> None:
    """It may need a package that is not here, and the update has its own. Code is refused."""
    change_config(folder, **{key: "flash_attention_2"})
    card = model_card(folder, run_settings.lora, "m", None)
    loaded = Policy.load(folder, card, run_settings, device="cpu")
    assert loaded.model.config._attn_implementation == "sdpa"
    change_config(folder, **{key: "org/attention"})
    with pytest.raises(InvalidSettings, match=f"has {key} = 'org/attention', which is code"):
        model_card(folder, run_settings.lora, "m", None)


def test_a_model_whose_outputs_have_no_names_is_refused(folder: Path) -> None:
    """By the operator's command and by a member's."""
    change_config(folder, return_dict=False)
    with pytest.raises(InvalidSettings, match="has return_dict = false"):
        model_card(folder, SETTINGS.lora, "m", None)


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"num_attention_heads": 3}, "other shapes than its config says of .*o_proj"),
        ({"hidden_act": "no such"}, "transformers does not load .*base: .*no such"),
        ({"rms_norm_eps": "small"}, "transformers does not load .*base: .*rms_norm_eps"),
    ],
)
def test_whatever_transformers_raises_becomes_one_sentence(
    folder: Path,
    card_of: Callable[[Path], ModelCard],
    run_settings: RunSettings,
    values: dict[str, Any],
    match: str,
) -> None:
    """Its error is the cause."""
    change_config(folder, **values)
    with pytest.raises(InvalidSettings, match=match):
        Policy.load(folder, card_of(folder), run_settings, device="cpu")


def test_errors_of_others_become_ours_with_their_cause() -> None:
    """Our own pass unchanged, memory that runs out has its class, and no message is a type's."""

    def converted(error: Exception) -> BaseException:
        with pytest.raises(Exception) as caught, refusing("It fails"):
            raise error
        return caught.value

    own, raw = WrongState("no"), KeyError()
    assert converted(own) is own
    found = converted(raw)
    assert isinstance(found, InvalidSettings) and found.__cause__ is raw
    assert found.detail == "It fails: KeyError"
    assert "\n" not in str(converted(RuntimeError("one\ntwo")))
    assert isinstance(converted(torch.OutOfMemoryError()), OutOfMemory)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # older transformers
@pytest.mark.parametrize(
    "kind",
    [
        *(
            "bert",
            "camembert",
            "data2vec-text",
            "electra",
            "ernie",
            "gpt_bigcode",
            "gpt_neo",
            "opt",
        ),
        *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    ],
)
def test_the_longest_row_that_is_taken_is_the_longest_that_transformers_computes(kind: str) -> None:
    """Tables of positions have rows that no token uses in some architectures."""
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "ffn_dim": 16,
    }
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 12, "vocab_size": 48}
    sizes |= {"word_embed_proj_dim": 16, "languages": ["en"], "default_language": "en"}
    known = AutoConfig.for_model(kind).to_dict()
    values = {key: value for key, value in sizes.items() if key in known}
    config = AutoConfig.for_model(kind, **values, is_decoder=True, pad_token_id=1)
    model = AutoModelForCausalLM.from_config(config).eval()

    def computed(tokens: int) -> bool:
        try:
            model(torch.full((1, tokens), 7), use_cache=False)
        except (IndexError, RuntimeError):
            return False
        return True

    def taken(tokens: int) -> bool:
        try:
            check_table(config.to_dict(), tokens)
        except InvalidSettings:
            return False
        return True

    longest = 1024 if kind == "gpt_bigcode" else 12
    lengths = range(longest - 3, longest + 2)
    assert [taken(tokens) for tokens in lengths] == [computed(tokens) for tokens in lengths]
    assert not taken(longest + 1)
