"""Folders of models with a vision tower, saved by the classes that are published.

Text-only saves of these models are not on the hub, and have other names.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch import nn

from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.merged_model import write_merged_model
from pubswap_protocol.errors import BaseModelMismatch, InvalidSettings
from pubswap_protocol.model import model_card, target_modules
from pubswap_protocol.tensors.adapter import encode_adapter, initial_adapter
from pubswap_protocol.tensors.peft_folder import (
    PublishedAdapter,
    read_peft_folder,
    write_peft_folder,
)
from support.client.architectures import SETTINGS
from support.models.published import PUBLISHED, save_published

IDS = torch.arange(3, 20)[None]
# A vision tower's layer and one that predicts a second token, with names that a run adapts.
MORE = {
    "mtp.layers.0.self_attn.q_proj.weight": torch.ones(32, 32),
    "model.layers.7.eh_proj.weight": torch.ones(32, 64),
    "model.layers.7.self_attn.q_proj.weight": torch.ones(32, 32),
}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        scores: torch.Tensor = model.eval()(input_ids=IDS).logits
    return scores


@pytest.mark.parametrize("kind", PUBLISHED)
@pytest.mark.filterwarnings("ignore")  # transformers and PEFT warn about unusual models
def test_the_text_of_a_published_model_trains_and_its_exports_fit_that_model(
    kind: str, tmp_path: Path
) -> None:
    """The operator's layout is the text model's linear layers, and the published class with the
    exported adapter, or merged with it, computes what was trained.
    """
    base, lora = tmp_path / "base", SETTINGS.lora
    published = save_published(base, kind, **MORE)
    card = model_card(base, lora, "org/base", None)
    policy = Policy.load(base, card, SETTINGS, device="cpu")
    check_packed_path(policy)
    text = policy.model.get_base_model()
    linear = {name.removesuffix(".base_layer") for name, _ in named_linear(text)}
    assert {name for name in linear if "lora_" not in name} - {"lm_head"} == set(
        target_modules(card.layout)
    )
    assert torch.equal(logits(policy.model), logits(published))

    rng = np.random.default_rng(1)
    adapter = {
        name: rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in card.layout.tensors.items()
    }
    policy.load_adapter(adapter)
    expected, file = logits(policy.model), encode_adapter(card.layout, adapter)
    assert not torch.allclose(expected, logits(published), rtol=0, atol=0.01)
    peft = tmp_path / "peft"
    write_peft_folder(peft, file, lora, card, "org/base")
    write_merged_model(tmp_path / "merged", file, lora, card, base)
    merged = type(published).from_pretrained(tmp_path / "merged")
    for name, weight in published.state_dict().items():
        if "language_model" not in name:
            assert torch.equal(merged.state_dict()[name], weight)
    assert torch.allclose(logits(merged), expected, rtol=0, atol=1e-4)
    assert torch.allclose(
        logits(PeftModel.from_pretrained(published, peft)), expected, rtol=0, atol=1e-4
    )
    assert read_peft_folder(peft, card, lora) == file
    for name, values in adapter.items():
        assert np.array_equal(PublishedAdapter(peft, card).tensor(name), values)


def named_linear(model: Any) -> list[tuple[str, Any]]:
    return [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear)]


def test_a_text_model_that_transformers_cannot_run_alone_is_refused_by_the_operator(
    tmp_path: Path,
) -> None:
    """The message names the model and its text."""
    save_published(tmp_path, "llava")
    config = tmp_path / "config.json"
    text = re.sub('"model_type": "llava"', '"model_type": "mllama"', config.read_text())
    config.write_text(text.replace('"model_type": "llama"', '"model_type": "mllama_text_model"'))
    with pytest.raises(InvalidSettings, match=r"A mllama model .*text part \(mllama_text_model\)"):
        model_card(tmp_path, SETTINGS.lora, "m", None)


def test_what_a_card_says_of_a_published_model_is_compared_with_its_files(tmp_path: Path) -> None:
    """Another place of the text would give exports names that fit nothing, and the class to load
    is the one in the files, whatever a coordinator calls it.
    """
    base = tmp_path / "base"
    save_published(base, "llava")
    card = model_card(base, SETTINGS.lora, "m", None)
    adapter = encode_adapter(card.layout, initial_adapter(card.layout, 1))
    moved = card.model_copy(update={"text_model": "model.vision_tower"})
    with pytest.raises(BaseModelMismatch, match=r"declares the text model 'model\.vision_tower'"):
        write_merged_model(tmp_path / "no", adapter, SETTINGS.lora, moved, base)
    named = card.model_copy(update={"architecture": "pipeline"})
    write_merged_model(tmp_path / "merged", adapter, SETTINGS.lora, named, base)
    assert (tmp_path / "merged" / "model.safetensors").exists()
