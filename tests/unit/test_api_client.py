"""The HTTP client's ladder, over httpx's own transport seam."""

from collections.abc import Callable

import httpx
import pytest

from pubswap_client.api import CoordinatorClient, wait_until_ready
from pubswap_client.retry import ONCE, Backoff
from pubswap_protocol import paths
from pubswap_protocol.adapter import digest_of
from pubswap_protocol.errors import (
    DigestMismatch,
    NameTaken,
    ProtocolMismatch,
    RoundClosed,
    ServerFault,
    Unreachable,
)

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, backoff: Backoff = ONCE) -> CoordinatorClient:
    """A client whose requests go to `handler`."""
    return CoordinatorClient("http://c", "secret", backoff, httpx.MockTransport(handler))


def test_every_request_carries_token_and_protocol_version() -> None:
    """The coordinator can tell who asks and which protocol is spoken."""
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"software": "0.1.0", "protocol": "1"})

    client(handler).check_version()
    assert seen[0].headers["Authorization"] == "Bearer secret"
    assert seen[0].headers[paths.PROTOCOL_HEADER] == paths.PROTOCOL_VERSION


def test_another_protocol_version_is_refused() -> None:
    """The message names both versions."""
    answer = httpx.Response(200, json={"software": "9", "protocol": "9"})
    with pytest.raises(ProtocolMismatch, match="protocol 9, this client 1"):
        client(lambda request: answer).check_version()


@pytest.mark.parametrize("error", [NameTaken("taken"), RoundClosed("closed")])
def test_a_problem_is_raised_as_the_class_the_server_raised(
    error: NameTaken | RoundClosed,
) -> None:
    """problem+json becomes the same error again, with its detail."""
    body = error.problem().model_dump()
    with pytest.raises(type(error), match=error.detail):
        client(lambda request: httpx.Response(error.status, json=body)).version()


def test_an_answer_that_is_no_problem_json_is_a_server_fault() -> None:
    """A proxy's error page does not pass for one of ours."""
    with pytest.raises(ServerFault, match="502"):
        client(lambda request: httpx.Response(502, text="<html>")).version()


def test_an_answer_of_another_shape_is_a_server_fault() -> None:
    """A body that does not fit its message is refused, not guessed at."""
    with pytest.raises(ServerFault, match="answered something else"):
        client(lambda request: httpx.Response(200, json={"hello": 1})).version()


def test_a_coordinator_that_is_not_there_yet_is_waited_for() -> None:
    """Refused connections are retried until one is answered."""
    answers = [httpx.ConnectError("refused")] * 2

    def handler(request: httpx.Request) -> httpx.Response:
        if answers:
            raise answers.pop()
        return httpx.Response(200, json={"software": "0.1.0", "protocol": "1"})

    assert client(handler, Backoff(base_seconds=0.001)).version().protocol == "1"


def test_an_unreachable_coordinator_says_what_to_check() -> None:
    """The message names the address and what to look at."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable, match=r"http://c cannot be reached.*Is it running"):
        wait_until_ready(client(handler), 0.0)


def test_bytes_that_are_not_what_the_digest_names_are_refused() -> None:
    """A blob is hashed on receipt."""
    with pytest.raises(DigestMismatch):
        client(lambda request: httpx.Response(200, content=b"other")).blob("r", digest_of(b"this"))


def test_a_blob_that_the_coordinator_has_is_not_sent_again() -> None:
    """A known digest costs one HEAD and no body."""
    methods: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        return httpx.Response(200)

    assert client(handler).put_blob("r", b"data") == digest_of(b"data")
    assert methods == ["HEAD"]


def test_an_open_exchange_is_asked_for_until_it_is_closed() -> None:
    """204 means: not yet."""
    answers = [httpx.Response(200, content=b"groups"), httpx.Response(204), httpx.Response(204)]
    assert client(lambda request: answers.pop()).exchanged("r", 1, 1) == b"groups"
    assert not answers
