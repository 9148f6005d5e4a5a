"""The doctor's check of the rollout engine."""

from pathlib import Path

import pytest

from pubswap_client.demo.processes import free_port
from pubswap_client.doctor.findings import Outcome
from pubswap_client.doctor.memory import of_engine
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_protocol.settings import RunSettings
from support.vllm.fake_vllm import fake_vllm

RUN = RunSettings.model_validate({"grpo": {"max_prompt_tokens": 30, "max_response_tokens": 30}})


def served(url: str, folder: Path) -> ClientSettings:
    vllm = VllmSettings(urls=(url,), adapter_dir=folder)
    return ClientSettings(engine="vllm-server", vllm=vllm)


def test_transformers_needs_nothing() -> None:
    """The trainer already depends on it."""
    assert of_engine(ClientSettings(), RUN).outcome is Outcome.OK


def test_auto_says_why_it_is_not_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU, or vLLM is not installed."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert of_engine(ClientSettings(), RUN).found == "transformers, and not vLLM: there is no GPU"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("pubswap_client.rollout.engine_choice.find_spec", lambda name: None)
    assert "vLLM is not installed" in of_engine(ClientSettings(), RUN).found
    assert of_engine(ClientSettings(engine="transformers"), RUN).found == "transformers"


@pytest.mark.parametrize(("there", "status"), [(None, "failure"), (object(), "ok")])
def test_vllm_is_installed_or_the_command_is_named(
    there: object, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check does not import vLLM."""
    monkeypatch.setattr("pubswap_client.doctor.memory.find_spec", lambda name: there)
    found = of_engine(ClientSettings(engine="vllm"), RUN)
    assert found.outcome == status
    assert there or "pip install" in found.advice


def test_replicas_that_answer_and_take_the_lengths_are_well(tmp_path: Path) -> None:
    """They are only asked for their models."""
    with fake_vllm() as fake:
        assert of_engine(served(fake.url, tmp_path), RUN).outcome is Outcome.OK
    assert {path for path, _ in fake.asked} == {"/v1/models"}
    assert list(tmp_path.iterdir()) == []


def test_replicas_that_are_away_or_take_too_few_tokens_are_named(tmp_path: Path) -> None:
    """The advice says what to do."""
    away = f"http://127.0.0.1:{free_port()}"
    found = of_engine(served(away, tmp_path), RUN)
    assert found.outcome is Outcome.FAILURE
    assert away in found.advice
    with fake_vllm(longest=59) as fake:
        found = of_engine(served(fake.url, tmp_path), RUN)
    assert found.outcome is Outcome.FAILURE
    assert "--max-model-len 60" in found.advice


def test_a_replica_that_wants_a_key_says_so(tmp_path: Path) -> None:
    """The advice names the setting."""
    refusal = (401, {"error": {"message": "Unauthorized"}})
    with fake_vllm(fail={"/v1/models": [refusal]}) as fake:
        found = of_engine(served(fake.url, tmp_path), RUN)
    assert found.outcome is Outcome.FAILURE
    assert "vllm.api_key" in found.advice


def test_the_shared_folder_must_be_there(tmp_path: Path) -> None:
    """Otherwise the replicas could be given no adapter."""
    found = of_engine(served("http://127.0.0.1:1", tmp_path / "none"), RUN)
    assert found.outcome is Outcome.FAILURE
    assert "same path" in found.advice
