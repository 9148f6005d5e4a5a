"""A merged model is the checkpoint of base + (alpha / r) B A."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from pubswap_client.demo.demos import MODEL
from pubswap_client.rollout.merged_model import write_merged_model
from pubswap_protocol.errors import BaseModelMismatch, NotSaved
from pubswap_protocol.model import ModelCard, model_card
from pubswap_protocol.settings import LoraSettings
from pubswap_protocol.tensors.adapter import Adapter, encode_adapter, modules, stack_layout
from pubswap_protocol.tensors.peft_folder import write_peft_folder
from support.chaos.small_disk import missing, small_disk

LORA = LoraSettings(rank=8, alpha=16)


def random_adapter(card: ModelCard, ranks: tuple[int, int] = (8, 8)) -> tuple[Adapter, bytes]:
    """An adapter whose first module has the first rank, and all others the second."""
    pairs = modules(card.layout)
    layout = stack_layout(card.layout, {a: ranks[min(n, 1)] for n, (a, _) in enumerate(pairs)})
    rng = np.random.default_rng(1)
    adapter = {
        name: rng.normal(0, 0.05, shape).astype(np.float32)
        for name, shape in layout.tensors.items()
    }
    return adapter, encode_adapter(layout, adapter)


def base_in(folder: Path, dtype: torch.dtype) -> Path:
    """The demo's model in this precision."""
    shutil.copytree(MODEL, folder)
    AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).save_pretrained(folder)
    (folder / "notes.txt").write_text("private")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [(8, 8), (24, 16)])
def test_each_adapted_weight_is_the_sum_rounded_once(
    tmp_path: Path, dtype: torch.dtype, ranks: tuple[int, int]
) -> None:
    """In the base's precision and for every rank; all other weights are unchanged."""
    base = base_in(tmp_path / "base", dtype)
    card = model_card(base, LORA, "org/base", None)
    adapter, data = random_adapter(card, ranks)
    write_merged_model(tmp_path / "merged", data, LORA, card, base)
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    assert before.keys() == after.keys()
    expected = dict(before)
    for a, b in modules(card.layout):
        name = a.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
        product = torch.tensor(adapter[b]) @ torch.tensor(adapter[a])
        expected[name] = (before[name].float() + 2 * product).to(dtype)
    for name, weight in after.items():
        assert weight.dtype == dtype
        assert torch.equal(weight, expected[name]), name
    modes = {path.stat().st_mode for path in (tmp_path / "merged").iterdir()}
    assert len(modes) == 1, "whoever may read one file may read all"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's own
def test_a_merged_model_computes_what_peft_does_and_ends_at_the_run_s_tokens(
    tmp_path: Path,
) -> None:
    """The tokenizer and the processor equal the base's in every byte; no other file of its folder
    is copied.
    """
    base = base_in(tmp_path / "base", torch.float32)
    for name in ("preprocessor_config.json", "README.md"):
        (base / name).write_text("{}")
    card = model_card(base, LORA, "org/base", None, stops=(7,))
    _, data = random_adapter(card)
    merged = tmp_path / "merged"
    write_merged_model(merged, data, LORA, card, base)
    write_peft_folder(tmp_path / "peft", data, LORA, card, "org/base")
    assert sorted(path.name for path in merged.iterdir()) == [
        *("config.json", "generation_config.json", "model.safetensors"),
        *("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"),
    ]
    assert model_card(merged, LORA, "merged", None).tokenizer_digest == card.tokenizer_digest
    assert json.loads((merged / "generation_config.json").read_text())["eos_token_id"] == [1, 7]
    ids = AutoTokenizer.from_pretrained(merged)("12 + 30 =", return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        untrained = model(ids).logits
        expected = PeftModel.from_pretrained(model, tmp_path / "peft")(ids).logits
        logits = AutoModelForCausalLM.from_pretrained(merged)(ids).logits
    assert torch.allclose(logits, expected, rtol=0, atol=1e-4)
    assert not torch.allclose(logits, untrained, rtol=0, atol=0.1)


def test_another_base_model_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    card = model_card(MODEL, LORA, "org/base", "main")
    base = base_in(tmp_path / "base", torch.bfloat16)
    with pytest.raises(BaseModelMismatch, match=r"config, weights\. The run uses org/base"):
        write_merged_model(tmp_path / "merged", random_adapter(card)[1], LORA, card, base)
    assert not (tmp_path / "merged").exists()


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    """It raises our own error, whatever safetensors raises."""
    card = model_card(MODEL, LORA, "org/base", "main")
    adapter = random_adapter(card)[1]
    with small_disk(tmp_path / "small", 1 << 20) as disk, pytest.raises(NotSaved, match="No space"):
        write_merged_model(disk.folder / "merged", adapter, LORA, card, MODEL)
