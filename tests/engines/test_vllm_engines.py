"""Both vLLM engines against the trainer, on the demo's model, with a real vLLM on CPU."""

import copy
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_client.rollout.transformers_engine import SamplingParameters
from pubswap_client.rollout.vllm_http import InferenceServer
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_client.training.mismatch import UNUSUAL, check
from pubswap_protocol.errors import EngineFault, InvalidSettings, StaleAdapter
from pubswap_protocol.tensors.adapter import Adapter
from pubswap_protocol.tensors.peft_folder import WEIGHTS
from pubswap_protocol.tensors.responses import Response
from support.client.mismatches import TEXTS, compared
from support.coordinator.replicas import LONGEST, needs_vllm

if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy

pytestmark = [
    needs_vllm,
    pytest.mark.filterwarnings("ignore::FutureWarning:vllm.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
Groups = list[list[Response]]
Adapters = Callable[[int], Adapter]


@pytest.fixture(scope="module", params=["vllm", "vllm-server"])
def engine(
    request: pytest.FixtureRequest, policy: "Policy", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Each engine, made as a member makes it."""
    from pubswap_client.daemon.factories import make_engine

    vllm = VllmSettings(extra={"kv_cache_memory_bytes": 1 << 28})
    if request.param == "vllm-server":
        servers = request.getfixturevalue("servers")
        vllm = VllmSettings(
            urls=(servers["first"], servers["second"]),
            adapter_dir=tmp_path_factory.mktemp("shared"),
        )
    state = tmp_path_factory.mktemp("state")
    settings = ClientSettings(engine=request.param, state=state, vllm=vllm)
    with closing(make_engine(settings, policy, MODEL)) as made:
        yield made


def sampled(engine: Any, policy: "Policy", temperature: float = 0.7, seed: int = 1) -> Groups:
    """Six responses to each of four prompts."""
    prompts = [policy.encode(text) for text in TEXTS]
    groups: Groups = engine.generate(prompts, SamplingParameters(6, 32, temperature, seed))
    return groups


def tokens(groups: Groups) -> list[list[list[int]]]:
    return [[response.tokens.tolist() for response in group] for group in groups]


def test_responses_end_with_their_first_end_of_sequence_token_or_at_the_limit(
    engine: Any, policy: "Policy", adapter: Adapters
) -> None:
    """Tokens are in the vocabulary, and each has a log-probability, the last one too."""
    policy.load_adapter(adapter(1))
    ends = set(policy.card.eos_token_ids)
    seen = set()
    for limit in (3, 32):
        groups = engine.generate(
            [policy.encode(text) for text in TEXTS], SamplingParameters(6, limit, 0.7, 1)
        )
        assert [len(group) for group in groups] == [6] * len(TEXTS)
        for response in (response for group in groups for response in group):
            found = response.tokens.tolist()
            assert 1 <= len(found) <= limit
            assert len(response.logprobs) == len(found)
            assert set(found) <= set(range(policy.card.vocabulary))
            assert not ends & set(found[:-1])
            assert found[-1] in ends or len(found) == limit
            seen.add(found[-1] in ends)
    assert seen == {True, False}


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_log_probabilities_are_the_trainer_s(
    engine: Any, policy: "Policy", adapter: Adapters, temperature: float
) -> None:
    """At the sampling temperature, and to float32's precision."""
    policy.load_adapter(adapter(1))
    groups = sampled(engine, policy, temperature)
    assert compared(policy, groups, temperature).max() < 1e-3


def test_a_changed_adapter_is_what_is_sampled_from(
    engine: Any, policy: "Policy", adapter: Adapters
) -> None:
    """After a load, log-probabilities are the new policy's, and not the old one's."""
    policy.load_adapter(adapter(1))
    sampled(engine, policy)
    policy.load_adapter(adapter(2))
    groups = sampled(engine, policy)
    assert compared(policy, groups).max() < 1e-3
    policy.load_adapter(adapter(1))
    assert compared(policy, groups).mean() > 0.1


def test_a_seed_gives_the_same_responses_again(
    engine: Any, policy: "Policy", adapter: Adapters
) -> None:
    """Also after other adapters; another seed gives others, and prompts do not share draws."""
    policy.load_adapter(adapter(1))
    first = tokens(sampled(engine, policy, 1.5, seed=1))
    policy.load_adapter(adapter(2))
    assert tokens(sampled(engine, policy, 1.5, seed=1)) != first
    policy.load_adapter(adapter(1))
    assert tokens(sampled(engine, policy, 1.5, seed=1)) == first
    assert tokens(sampled(engine, policy, 1.5, seed=2)) != first
    same = engine.generate([policy.encode(TEXTS[0])] * 2, SamplingParameters(6, 32, 1.5, 1))
    assert tokens(same)[0] != tokens(same)[1]


def test_an_unchanged_adapter_is_not_loaded_again(
    engine: Any, policy: "Policy", adapter: Adapters
) -> None:
    """One folder is left, and it stays the same until the policy changes."""
    policy.load_adapter(adapter(1))
    sampled(engine, policy)
    folders = engine.root
    first = sorted(folders.iterdir())
    sampled(engine, policy)
    assert sorted(folders.iterdir()) == first
    policy.load_adapter(adapter(2))
    sampled(engine, policy)
    assert len(first) == len(list(folders.iterdir())) == 1
    assert sorted(folders.iterdir()) != first


def test_a_load_that_did_not_happen_is_noticed(
    engine: Any, policy: "Policy", adapter: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that says yes and loads nothing is not sampled from."""
    policy.load_adapter(adapter(1))
    sampled(engine, policy)
    policy.load_adapter(adapter(2))
    monkeypatch.setattr(engine, "load", lambda version: None)
    with pytest.raises(StaleAdapter, match="does not serve"):
        sampled(engine, policy)


def test_old_weights_under_a_new_name_are_noticed_by_their_log_probabilities(
    engine: Any, policy: "Policy", adapter: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check against the trainer raises StaleAdapter where names can tell nothing."""
    policy.load_adapter(adapter(1))
    sampled(engine, policy)
    old = (engine._served.path / WEIGHTS).read_bytes()
    loader = engine
    load = loader.load

    def load_old_weights(version: Any) -> None:
        weights = version.path / WEIGHTS
        new = weights.read_bytes()
        weights.write_bytes(old)
        load(version)
        weights.write_bytes(new)

    policy.load_adapter(adapter(2))
    with monkeypatch.context() as patch:
        patch.setattr(loader, "load", load_old_weights)
        groups = sampled(engine, policy)
    with pytest.raises(StaleAdapter, match="nats a token"):
        check(float(compared(policy, groups).mean()), UNUSUAL)
    policy.load_adapter(adapter(1))
    check(float(compared(policy, groups).mean()), UNUSUAL)
    policy.load_adapter(adapter(3))
    check(float(compared(policy, sampled(engine, policy)).mean()), UNUSUAL)


def server_engine(policy: "Policy", urls: tuple[str, ...], work: Path) -> Any:
    from pubswap_client.rollout.vllm_server_engine import VllmServerEngine

    settings = VllmSettings(urls=urls, adapter_dir=work)
    return VllmServerEngine(policy, MODEL, work, settings)


def loaded(url: str) -> set[str]:
    with closing(InferenceServer(url)) as server:
        return {model.id for model in server.models() if model.parent is not None}


def test_every_replica_gets_the_adapter_and_loses_it_at_the_end(
    policy: "Policy", adapter: Adapters, servers: dict[str, str], tmp_path: Path
) -> None:
    """Both serve the same new version alone; when the engine is closed, neither serves it."""
    urls = (servers["first"], servers["second"])
    before = [loaded(url) for url in urls]
    with closing(server_engine(policy, urls, tmp_path / "work")) as engine:
        names = []
        for seed in (1, 2):
            policy.load_adapter(adapter(seed))
            sampled(engine, policy)
            first, second = (loaded(url) - old for url, old in zip(urls, before, strict=True))
            assert first == second
            names += first
        assert len(set(names)) == 2
    assert [loaded(url) for url in urls] == before
    assert not (tmp_path / "work").exists()


def test_a_replica_that_forgot_the_adapter_gets_it_again(
    policy: "Policy", adapter: Adapters, servers: dict[str, str], tmp_path: Path
) -> None:
    """As after a restart: the adapter is loaded everywhere under a new name."""
    policy.load_adapter(adapter(1))
    urls = (servers["first"], servers["second"])
    with closing(server_engine(policy, urls, tmp_path / "work")) as engine:
        groups = sampled(engine, policy)
        with closing(InferenceServer(urls[1])) as server:
            server.unload_adapter(engine._served.name)
        assert tokens(sampled(engine, policy)) == tokens(groups)


def test_a_server_that_reports_raw_log_probabilities_is_refused_with_the_right_command(
    policy: "Policy", servers: dict[str, str], tmp_path: Path
) -> None:
    """One such replica among good ones is enough."""
    with pytest.raises(InvalidSettings, match=r"before temperature.*processed_logprobs"):
        server_engine(policy, (servers["first"], servers["wrong"]), tmp_path / "work")


def test_a_server_without_runtime_updates_is_refused_with_the_right_command(
    policy: "Policy", servers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable that vLLM asks for is in the message."""
    module = "pubswap_client.rollout.vllm_server_engine.reports_raw_logprobs"
    monkeypatch.setattr(module, lambda *_: False)
    with pytest.raises(EngineFault, match=r"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True .*vllm serve"):
        server_engine(policy, (servers["wrong"],), tmp_path / "work")


def test_a_server_whose_context_is_too_short_is_refused(
    policy: "Policy", servers: dict[str, str], tmp_path: Path
) -> None:
    """The run's prompt and response must fit."""
    longer = copy.copy(policy)
    grpo = policy.settings.grpo.model_copy(update={"max_response_tokens": LONGEST})
    longer.settings = policy.settings.model_copy(update={"grpo": grpo})
    with pytest.raises(InvalidSettings, match=r"takes 96 tokens, the run needs 160"):
        server_engine(longer, (servers["first"],), tmp_path / "work")


def test_an_adapter_that_the_server_cannot_read_says_so(
    policy: "Policy", servers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the folder is not shared: vLLM's own words and a question about the folder."""
    from pubswap_client.rollout import hot_reload

    monkeypatch.setattr(
        hot_reload, "write_peft_folder", lambda folder, *_: folder.mkdir(parents=True)
    )
    with pytest.raises(EngineFault, match="Can it read this folder"):
        server_engine(policy, (servers["first"],), tmp_path / "work")
