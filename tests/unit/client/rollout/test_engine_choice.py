"""The engine chosen by `engine = "auto"`."""

from typing import Any

import pytest

from pubswap_client.rollout.engine_choice import chosen_engine, why_not_vllm
from pubswap_client.settings import ClientSettings
from pubswap_protocol.settings import RunSettings


@pytest.fixture
def gpu_with_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there is a GPU and vLLM is installed."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("pubswap_client.rollout.engine_choice.find_spec", lambda name: object())


@pytest.mark.usefixtures("gpu_with_vllm")
def test_vllm_samples_where_it_is_installed_and_there_is_a_gpu() -> None:
    """Without any setting."""
    assert chosen_engine(ClientSettings(), RunSettings()) == "vllm"
    assert why_not_vllm(ClientSettings(), RunSettings()) is None


@pytest.mark.usefixtures("gpu_with_vllm")
@pytest.mark.parametrize(
    ("client", "run"),
    [
        ({"device": "cpu"}, {}),
        ({"shard": True, "processes": 2}, {}),
        ({}, {"evaluation": {"temperature": 0.001}}),
        ({}, {"lora": {"rank": 513}}),
    ],
)
def test_transformers_samples_what_vllm_cannot(client: dict[str, Any], run: dict[str, Any]) -> None:
    """A run that vLLM would refuse is not refused just because vLLM is installed."""
    settings, rules = ClientSettings(**client), RunSettings.model_validate(run)
    assert chosen_engine(settings, rules) == "transformers"
    assert why_not_vllm(settings, rules)


def test_without_a_gpu_transformers_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if vLLM's CPU build is installed."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pubswap_client.rollout.engine_choice.find_spec", lambda name: object())
    assert chosen_engine(ClientSettings(), RunSettings()) == "transformers"


@pytest.mark.parametrize("engine", ["transformers", "vllm", "vllm-server"])
def test_an_engine_that_is_named_is_taken(engine: Any) -> None:
    """Whatever is installed."""
    vllm = {"urls": ["http://a:1"], "adapter_dir": "/a"}
    settings = ClientSettings(engine=engine, vllm=vllm)
    assert chosen_engine(settings, RunSettings()) == engine
