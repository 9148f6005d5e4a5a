"""Exported adapters in a real `vllm serve`, by the line that is printed for it."""

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pubswap_client.demo.federation import MODEL
from pubswap_client.demo.processes import Processes
from pubswap_client.operator.adapter_card import loading
from pubswap_client.operator.adapter_folder import Format, write_adapter
from pubswap_protocol.messages import RunState, WholeRun
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import encode_adapter
from support.coordinator.replicas import needs_vllm, start_replica, wait_for_replica

pytestmark = [needs_vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SETTINGS = RunSettings()
RUN = WholeRun(
    id="r1",
    name="consortium",
    state=RunState.FINISHED,
    paused=False,
    round=1,
    settings=SETTINGS,
    model=model_card(MODEL, SETTINGS.lora, str(MODEL), None),
    created_at=datetime.now(UTC),
)
TOKENS = 16


def random_adapter() -> bytes:
    """Of the run's rank, which is above vLLM's default."""
    layout = RUN.model.layout
    rng = np.random.default_rng(1)
    return encode_adapter(
        layout,
        {name: rng.normal(0, 0.05, s).astype(np.float32) for name, s in layout.tensors.items()},
    )


def continued(url: str, model: str, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The most probable tokens that a server continues with, and their log-probabilities."""
    asked: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": TOKENS}
    asked |= {"temperature": 0, "logprobs": 1, "return_tokens_as_token_ids": True}
    answer = httpx.post(f"{url}/v1/completions", json=asked | {"ignore_eos": True}, timeout=100)
    found = answer.raise_for_status().json()["choices"][0]["logprobs"]
    return [int(token.removeprefix("token_id:")) for token in found["tokens"]], found[
        "token_logprobs"
    ]


def test_both_formats_are_served_as_peft_computes_them(tmp_path: Path) -> None:
    """The base's own answers are far from them."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapter, urls = random_adapter(), {}
    with Processes(tmp_path / "logs") as processes:
        for form in Format:
            folder = tmp_path / form
            folder.mkdir()
            write_adapter(folder, RUN, 1, adapter, form)
            lines = loading(RUN, adapter, str(folder), form is Format.MERGED)
            (line,) = (line for line in lines if line.startswith("vllm serve "))
            served, *options = shlex.split(line.removeprefix("vllm serve "))
            served = str(MODEL) if served == "BASE" else served
            urls[form] = start_replica(processes, form, options, False, Path(served))
        for url in urls.values():
            wait_for_replica(processes, url)
        prompt = AutoTokenizer.from_pretrained(MODEL)("12 + 30 =").input_ids
        adapted = continued(urls[Format.PEFT], "consortium", prompt)
        merged = continued(urls[Format.MERGED], str(tmp_path / "merged"), prompt)
        base = continued(urls[Format.PEFT], str(MODEL), prompt)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, tmp_path / "peft")
    for tokens, logprobs in (adapted, merged):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[range(TOKENS), tokens]
        assert np.allclose(logprobs, expected.numpy(), rtol=0, atol=1e-3)
    assert adapted[0] == merged[0] != base[0]
