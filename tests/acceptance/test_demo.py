"""`pubswap demo` as a user runs it, shortened by its own options."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pubswap_client.demo.demos import MODEL
from support.forked import pubswap

pytestmark = pytest.mark.full

KEYS = {
    "base_pass_at_1",
    "final_pass_at_1",
    "best_pass_at_1",
    "rounds",
    "clients",
    "public_steps",
    "responses_replaced",
    "bytes_up",
    "bytes_down",
    "seconds",
}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_demo_leaves_summary_plot_and_a_loadable_adapter(tmp_path: Path) -> None:
    """The demo ends well and leaves everything that it promises."""
    out = tmp_path / "out"
    options = ["--rounds", "1", "--local-steps", "3", "--clients", "2", "--out", str(out)]
    done = pubswap("demo", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass@1 after each round" in done.stdout

    summary = json.loads((out / "summary.json").read_text())
    assert summary.keys() >= KEYS
    assert (summary["rounds"], summary["clients"], summary["public_steps"]) == (1, 2, 1)
    assert 0 < summary["base_pass_at_1"] < 1
    assert 0 < summary["bytes_up"] < summary["full_fine_tuning_bytes_each_way"] * 2
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")

    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokens = torch.arange(3, 11).unsqueeze(0)
    before = base(tokens).logits.detach()
    adapted = PeftModel.from_pretrained(base, str(out / "adapter"))
    assert not torch.equal(adapted(tokens).logits.detach(), before)
    with adapted.disable_adapter():
        assert torch.allclose(adapted(tokens).logits.detach(), before, atol=1e-6)
