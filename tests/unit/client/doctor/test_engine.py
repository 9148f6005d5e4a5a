"""The doctor's checks of the rollout engine."""

from pathlib import Path

import pytest

from pubswap_client.demo.processes import free_port
from pubswap_client.doctor.coordinator import check_settings
from pubswap_client.doctor.findings import Finding, Outcome, of_error
from pubswap_client.doctor.memory import check_replicas
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_protocol.errors import EngineFault
from support.client.examined import facts_of
from support.vllm.fake_vllm import fake_vllm


def replicas(url: str, folder: Path) -> Finding | None:
    vllm = VllmSettings(urls=(url,), adapter_dir=folder)
    return check_replicas(facts_of(ClientSettings(engine="vllm-server", vllm=vllm)))


def test_auto_says_why_it_is_not_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no GPU, or vLLM is not installed; without auto there is nothing to say."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert check_settings(facts_of()).found.endswith("transformers, not vLLM: there is no GPU")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("pubswap_client.rollout.engine_choice.find_spec", lambda name: None)
    assert "vLLM is not installed" in check_settings(facts_of()).found
    own = facts_of(ClientSettings(engine="transformers"))
    assert check_settings(own).found.endswith("engine transformers")
    assert check_replicas(own) is None


def test_replicas_that_answer_are_well(tmp_path: Path) -> None:
    """They are only asked for their models."""
    with fake_vllm() as fake:
        found = replicas(fake.url, tmp_path)
    assert found is not None and found.outcome is Outcome.OK
    assert {path for path, _ in fake.asked} == {"/v1/models"}
    assert list(tmp_path.iterdir()) == []


def test_a_replica_that_is_away_or_wants_a_key_is_named_at_once(tmp_path: Path) -> None:
    """A daemon would wait for it."""
    away = f"http://127.0.0.1:{free_port()}"
    refusal = (401, {"error": {"message": "Unauthorized"}})
    with fake_vllm(fail={"/v1/models": [refusal]}) as fake:
        for url, said in ((away, away), (fake.url, "vllm.api_key")):
            with pytest.raises(EngineFault) as raised:
                replicas(url, tmp_path)
            found = of_error(raised.value)
            assert said in found.found + found.advice
