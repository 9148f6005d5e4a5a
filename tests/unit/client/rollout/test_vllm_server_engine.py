"""The engine for `vllm serve` replicas, against fake servers: adapters, errors, settings."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pubswap_client.daemon.factories import make_engine
from pubswap_client.rollout import vllm_http
from pubswap_client.rollout.threads import in_threads
from pubswap_client.rollout.transformers_engine import SamplingParameters, TransformersEngine
from pubswap_client.rollout.vllm_server_engine import VllmServerEngine
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_client.state.membership import membership_path
from pubswap_protocol.errors import EngineFault, InvalidSettings, StaleAdapter
from pubswap_protocol.tensors.peft_folder import WEIGHTS
from support.vllm.fake_vllm import FakeVllm, fake_vllm

if TYPE_CHECKING:
    from pubswap_client.policy.policy import Policy

PROMPTS = [[5, 6], [7], [8, 9, 10]]
MODEL = Path("/model")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for a replica that is down."""
    monkeypatch.setattr(vllm_http, "CONNECT_SECONDS", 0.0)


@pytest.fixture
def fakes() -> Iterator[list[FakeVllm]]:
    """Two replicas."""
    with fake_vllm() as first, fake_vllm() as second:
        yield [first, second]


def engine_on(policy: "Policy", fakes: list[FakeVllm], work: Path) -> VllmServerEngine:
    urls = tuple(fake.url for fake in fakes)
    return VllmServerEngine(policy, MODEL, work, VllmSettings(urls=urls))


def generate(engine: Any) -> list[list[list[int]]]:
    groups = engine.generate(PROMPTS, SamplingParameters(2, 12, 0.7, 1))
    return [[response.tokens.tolist() for response in group] for group in groups]


def change(policy: "Policy", by: float = 0.1) -> None:
    policy.load_adapter({name: factor + by for name, factor in policy.adapter().items()})


def served(folder: str) -> bytes:
    """The adapter that a replica was told to load."""
    return Path(folder, WEIGHTS).read_bytes()


def test_prompts_are_spread_over_replicas_that_all_have_the_adapter(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """Each request has token ids and its prompt's own seed; results are in the prompts' order."""
    with closing(engine_on(policy, fakes, tmp_path)) as engine:
        for fake in fakes:
            fake.asked.clear()
        assert generate(engine) == [[[5, 6, 1]] * 2] * 3
        asked = [[body for path, body in fake.asked if path == "/v1/completions"] for fake in fakes]
        assert [sorted(body["prompt"] for body in bodies) for bodies in asked] == [
            [PROMPTS[0], PROMPTS[2]],
            [PROMPTS[1]],
        ]
        assert len({body["seed"] for bodies in asked for body in bodies}) == 3
        assert fakes[0].adapters == fakes[1].adapters
        assert {body["model"] for bodies in asked for body in bodies} == set(fakes[0].adapters)


def test_a_changed_adapter_is_loaded_everywhere_before_it_is_used(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """It gets a new name; the old one is unloaded and its folder deleted; closing removes
    everything.
    """
    with closing(engine_on(policy, fakes, tmp_path)) as engine:
        generate(engine)
        old = dict(fakes[0].adapters)
        change(policy)
        for fake in fakes:
            fake.asked.clear()
        generate(engine)
        for fake in fakes:
            paths = [path for path, _ in fake.asked]
            assert paths.index("/v1/load_lora_adapter") < paths.index("/v1/completions")
            assert len(fake.adapters) == 1
            assert not fake.adapters.keys() & old.keys()
        assert [str(path) for path in tmp_path.iterdir()] == list(fakes[0].adapters.values())
    assert fakes[0].adapters == fakes[1].adapters == {}
    assert not tmp_path.exists()


def test_an_adapter_that_comes_back_gets_another_name(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """vLLM may still have key-value caches for its earlier name."""
    names = []
    with closing(engine_on(policy, fakes, tmp_path)) as engine:
        first = policy.adapter()
        for step in range(3):
            policy.load_adapter(first)
            if step == 1:
                change(policy)
            generate(engine)
            names += fakes[0].adapters
    assert len(set(names)) == 3


def test_a_replica_that_restarts_between_the_check_and_the_prompt_is_loaded_again(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """It no longer knows the adapter, so all replicas load it again, and the prompts are resent."""
    with closing(engine_on(policy, fakes, tmp_path)) as engine:
        fakes[1].fail["/v1/completions"] = [(404, {"error": {"message": "does not exist"}})]
        assert len(generate(engine)) == 3


def test_a_replica_that_never_has_the_adapter_is_stale(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """It reports success but does not list the adapter."""
    with closing(engine_on(policy, fakes, tmp_path)) as engine:
        change(policy)
        fakes[1].fail["/v1/load_lora_adapter"] = [(200, "Success")]
        with pytest.raises(StaleAdapter, match=f"{fakes[1].url} does not serve pubswap-"):
            generate(engine)


def test_a_load_whose_reply_was_lost_is_taken_for_done(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """The retry is refused as a duplicate, but the adapter is loaded."""
    with closing(engine_on(policy, fakes[:1], tmp_path)) as engine:
        change(policy)
        load = fakes[0].answer

        def lose_the_first(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            if path == "/v1/load_lora_adapter":
                load(path, body)
            return load(path, body)

        fakes[0].answer = lose_the_first  # type: ignore[method-assign]
        assert len(generate(engine)) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw": True}, r"before temperature.*--logprobs-mode processed_logprobs"),
        ({"longest": 51}, r"takes 51 tokens, the run needs 52.*--max-model-len 52"),
    ],
)
def test_a_replica_with_unsuitable_options_is_refused_with_the_right_command(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """One such replica is enough."""
    for name, value in changes.items():
        setattr(fakes[1], name, value)
    with pytest.raises(InvalidSettings, match=message) as caught:
        engine_on(policy, fakes, tmp_path)
    assert fakes[1].url in caught.value.detail
    assert "vllm serve /model --dtype float32" in caught.value.detail


def test_a_replica_that_loads_no_adapters_is_an_engine_fault_with_the_command(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """Without the named environment variable, the route does not exist."""
    fakes[1].updating = False
    message = r"does not load .*Not Found.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
    with pytest.raises(EngineFault, match=message):
        engine_on(policy, fakes, tmp_path)


def test_a_replica_that_wants_a_key_says_so(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """The message names the setting."""
    fakes[0].fail["/v1/models"] = [(401, {"error": "Unauthorized"})]
    with pytest.raises(EngineFault, match=r"Unauthorized.*vllm\.api_key"):
        engine_on(policy, fakes, tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/load_lora_adapter", "Can it read this folder"),
        ("/v1/completions", "refuses a prompt: no"),
    ],
)
def test_what_vllm_refuses_is_an_engine_fault_in_its_words(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path, path: str, message: str
) -> None:
    """It is not retried, because vLLM would refuse it again."""
    with closing(engine_on(policy, fakes, tmp_path)) as engine:
        change(policy)
        fakes[0].fail[path] = [(500, {"error": {"message": "no"}})]
        with pytest.raises(EngineFault, match=message):
            generate(engine)


@pytest.mark.parametrize(
    ("change_", "message"),
    [
        ({"token_ids": None}, "too old"),
        ({"logprobs": {"token_logprobs": [-1.0]}}, "3 tokens but 1"),
    ],
)
def test_an_unusable_completion_is_an_engine_fault(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path, change_: dict[str, Any], message: str
) -> None:
    """Missing token ids or log-probabilities are an error."""
    with closing(engine_on(policy, fakes, tmp_path)) as engine:
        fakes[0].change = change_
        with pytest.raises(EngineFault, match=message):
            generate(engine)


def test_closing_does_not_wait_for_a_replica_that_is_away(
    policy: "Policy",
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It logs a warning, and still deletes the adapters."""
    monkeypatch.setattr(vllm_http, "CONNECT_SECONDS", 60.0)
    with fake_vllm() as fake:
        settings = VllmSettings(urls=(fake.url,))
        engine = VllmServerEngine(policy, MODEL, tmp_path, settings)
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 10
    assert "could not be unloaded" in caplog.text
    assert not tmp_path.exists()


def test_threads_give_results_in_order_and_the_first_error() -> None:
    """Even with fewer threads than arguments; after an error nothing new starts."""
    assert in_threads(lambda value: value * value, range(50), 3) == [n * n for n in range(50)]
    begun = []

    def fail(value: int) -> None:
        begun.append(value)
        raise EngineFault(str(value))

    with pytest.raises(EngineFault, match="0"):
        in_threads(fail, range(1000), 1)
    assert begun == [0]


def test_a_member_s_settings_choose_the_engine(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is transformers; if vLLM is missing, the error says what to install."""
    with closing(make_engine(ClientSettings(), policy, MODEL)) as plain:
        assert isinstance(plain, TransformersEngine)
    vllm = VllmSettings(urls=(fakes[0].url,), adapter_dir=tmp_path / "shared")
    settings = ClientSettings(engine="vllm-server", vllm=vllm, state=tmp_path / "state")
    with closing(make_engine(settings, policy, MODEL)) as engine:
        assert len(generate(engine)) == 3
        (path,) = fakes[0].adapters.values()
        assert Path(path).parents[1] == tmp_path / "shared"
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InvalidSettings, match=r"pip install '\.\[client,vllm\]'"):
        make_engine(ClientSettings(engine="vllm"), policy, MODEL)


def test_members_at_one_path_have_folders_of_their_own(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """In containers every state folder may be /state, so the path alone does not tell members
    apart.
    """
    vllm = VllmSettings(urls=(fakes[0].url,), adapter_dir=tmp_path / "shared")
    settings = ClientSettings(engine="vllm-server", vllm=vllm, state=tmp_path)
    with ExitStack() as stack:
        for member in ("a", "b"):
            membership_path(tmp_path).write_text(member)
            stack.enter_context(closing(make_engine(settings, policy, MODEL)))
        assert len(list((tmp_path / "shared").iterdir())) == 2


def test_the_target_of_a_link_is_not_emptied(
    policy: "Policy", fakes: list[FakeVllm], tmp_path: Path
) -> None:
    """In a shared folder, another member may have put a link in place of our folder."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    (work := tmp_path / "member").symlink_to(tmp_path / "mine")
    with pytest.raises(FileExistsError):
        engine_on(policy, fakes, work)
    assert (tmp_path / "mine" / "file").read_text() == "kept"
