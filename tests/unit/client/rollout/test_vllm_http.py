"""HTTP to `vllm serve`: requests, retries and errors."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pubswap_client.demo.processes import free_port
from pubswap_client.rollout import vllm_http
from pubswap_client.rollout.vllm_http import InferenceServer, VllmRefused
from pubswap_protocol.errors import EngineFault, InvalidSettings
from support.eventually import until
from support.vllm.fake_vllm import BASE, FakeVllm, fake_vllm

PROMPT = {"model": BASE, "prompt": [3, 4], "n": 2, "temperature": 1.0}


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    """A fake vLLM."""
    with fake_vllm() as server:
        yield server


@pytest.fixture
def server(fake: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> Iterator[InferenceServer]:
    """A client of the fake, with short waits between tries."""
    monkeypatch.setattr(vllm_http, "RETRY_SECONDS", 0.01)
    with closing(InferenceServer(f"{fake.url}/v1/", "key", connect_seconds=5)) as client:
        yield client


def test_adapters_are_loaded_listed_and_unloaded(fake: FakeVllm, server: InferenceServer) -> None:
    """A loaded adapter is listed with its folder and its base; `/v1` in the URL is ignored."""
    server.load_adapter("a-1", Path("/shared/a-1"))
    base, adapter = server.models()
    assert (base.id, base.parent, base.max_model_len) == (BASE, None, 64)
    assert (adapter.id, adapter.root, adapter.parent) == ("a-1", "/shared/a-1", BASE)
    server.unload_adapter("a-1")
    assert fake.adapters == {}


def test_an_invalid_address_is_refused() -> None:
    """The message names the setting."""
    with pytest.raises(InvalidSettings, match="'http://gpu-1:port' is not an address"):
        InferenceServer("http://gpu-1:port")
    with pytest.raises(EngineFault, match="is its address in"):
        InferenceServer("http://gpu..1:8000", connect_seconds=0).models()


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_an_invalid_key_is_refused(key: str) -> None:
    """Before a request could fail with a traceback."""
    with pytest.raises(InvalidSettings, match="api_key has characters"):
        InferenceServer("http://gpu-1:8000", key)


def test_prompts_go_through_no_proxy(fake: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is meant for the coordinator would see them."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with closing(InferenceServer(fake.url, connect_seconds=0)) as client:
        assert len(client.models()) == 1


def test_a_completion_holds_token_ids_and_log_probabilities(server: InferenceServer) -> None:
    """In the server's order, with the name of the model or adapter used."""
    reply = server.complete(PROMPT)
    assert (reply.model, [choice.index for choice in reply.choices]) == (BASE, [1, 0])
    assert reply.choices[0].token_ids == [5, 6, 1]


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_that_is_away_is_asked_again(
    fake: FakeVllm, server: InferenceServer, status: int
) -> None:
    """For instance behind a proxy while vLLM restarts."""
    fake.fail["/v1/models"] = [(status, "away"), (status, "away")]
    assert len(server.models()) == 1
    assert len(fake.asked) == 3


def test_a_server_that_comes_up_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused connections are retried until it answers."""
    monkeypatch.setattr(vllm_http, "RETRY_SECONDS", 0.01)
    port = free_port()

    def come_up_late() -> None:
        time.sleep(0.2)
        with fake_vllm(port=port) as fake:
            while not fake.asked:
                time.sleep(0.01)

    late = threading.Thread(target=come_up_late)
    late.start()
    with closing(InferenceServer(f"http://127.0.0.1:{port}", connect_seconds=10)) as server:
        assert len(server.models()) == 1
    late.join()


def test_a_server_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After connect_seconds; the message names the setting to check."""
    monkeypatch.setattr(vllm_http, "RETRY_SECONDS", 0.01)
    url = f"http://127.0.0.1:{free_port()}"
    started = time.monotonic()
    with (
        closing(InferenceServer(url, connect_seconds=0.1)) as server,
        pytest.raises(EngineFault, match=r"cannot be reached.*vllm\.urls") as caught,
    ):
        server.models()
    assert not caught.value.retryable
    assert 0.1 < time.monotonic() - started < 5


def test_a_server_that_is_too_slow_is_not_asked_again(
    fake: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would only sample the same responses again."""
    monkeypatch.setattr(vllm_http, "RESPONSE_SECONDS", 0.05)
    with closing(InferenceServer(fake.url)) as server:
        fake.slow = 0.2
        with pytest.raises(EngineFault, match="did not answer"):
            server.models()
    until(lambda: fake.asked)  # on a busy machine it may arrive after the timeout
    assert len(fake.asked) == 1


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        ((400, {"error": {"message": "too long", "code": 400}}), 400, "too long"),
        ((404, {"error": {"message": "no adapter", "code": 404}}), 404, "no adapter"),
        ((404, {"detail": "Not Found"}), 404, "Not Found"),
        ((500, "Internal Server Error"), 500, "Internal Server Error"),
        ((401, {"error": "Unauthorized"}), 401, "Unauthorized"),
    ],
)
def test_a_refusal_keeps_the_status_and_vllm_s_words(
    fake: FakeVllm,
    server: InferenceServer,
    answer: tuple[int, Any],
    status: int,
    message: str,
) -> None:
    """From vLLM's error object, or the plain text of its web server."""
    fake.fail["/v1/completions"] = [answer]
    with pytest.raises(VllmRefused, match=message) as caught:
        server.complete(PROMPT)
    assert caught.value.status == status


def test_an_answer_of_something_else_is_an_engine_fault(
    fake: FakeVllm, server: InferenceServer
) -> None:
    """Another web server at this address is not mistaken for vLLM."""
    fake.fail["/v1/models"] = [(200, "<html>hello</html>")]
    with pytest.raises(EngineFault, match="did not answer as vLLM does"):
        server.models()
