"""Exported adapters in a real `vllm serve`, by the line that is printed for it."""

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from pubswap_client.demo.demos import MODEL
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
TOKENS = 16


def run_of(base: Path) -> WholeRun:
    return WholeRun(
        id="r1",
        name="consortium",
        state=RunState.FINISHED,
        paused=False,
        round=1,
        settings=SETTINGS,
        model=model_card(base, SETTINGS.lora, str(base), None),
        created_at=datetime.now(UTC),
    )


def random_adapter(run: WholeRun) -> bytes:
    """Of the run's rank, which is above vLLM's default."""
    layout = run.model.layout
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


@pytest.mark.parametrize("kind", ["text", pytest.param("qwen2_5_vl", marks=pytest.mark.full)])
def test_both_formats_are_served_as_peft_computes_them(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The base's own answers are far from them. A model with a vision tower is served whole, and
    PEFT adapts its published class.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, AutoTokenizer

    from support.models.published import save_published

    base, loader, more = MODEL, AutoModelForCausalLM, []
    if kind != "text":
        request.getfixturevalue("no_images")
        base, loader = tmp_path / "base", AutoModelForMultimodalLM
        more = ["--language-model-only"]  # the small model has no processor
        save_published(base, kind)
    run, urls = run_of(base), {}
    adapter = random_adapter(run)
    with Processes(tmp_path / "logs") as processes:
        for form in Format:
            folder = tmp_path / form
            folder.mkdir()
            write_adapter(folder, run, 1, adapter, form)
            lines = loading(run, adapter, str(folder), form is Format.MERGED)
            (line,) = (line for line in lines if line.startswith("vllm serve "))
            served, *options = shlex.split(line.removeprefix("vllm serve "))
            served = str(base) if served == "BASE" else served
            urls[form] = start_replica(processes, form, [*options, *more], False, Path(served))
        for url in urls.values():
            wait_for_replica(processes, url)
        prompt = AutoTokenizer.from_pretrained(base)("12 + 30 =").input_ids
        adapted = continued(urls[Format.PEFT], "consortium", prompt)
        merged = continued(urls[Format.MERGED], str(tmp_path / "merged"), prompt)
        unchanged = continued(urls[Format.PEFT], str(base), prompt)
    model = loader.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, tmp_path / "peft")
    for tokens, logprobs in (adapted, merged):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[range(TOKENS), tokens]
        assert np.allclose(logprobs, expected.numpy(), rtol=0, atol=1e-3)
    assert adapted[0] == merged[0] != unchanged[0]
