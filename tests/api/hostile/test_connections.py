"""HTTP/1.1 connections: pipelining, upgrades, and bodies that nobody reads."""

import re
import time
from collections.abc import Iterator

import pytest

from pubswap_protocol import paths
from support.chaos.raw_http import connected, problem_of, rest
from support.coordinator.coordinator import Server, begun, serving, settings_for

UPGRADE = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
GET = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A coordinator."""
    with serving(settings_for(tmp_path_factory.mktemp("plain"))) as server, server.closing:
        yield server


def statuses(answers: bytes) -> list[int]:
    """The status codes of all responses, in order."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def asked(server: Server, data: bytes) -> bytes:
    """Send these bytes; returns everything received until the coordinator closes."""
    with connected(server.url) as raw:
        raw.sendall(data)
        return rest(raw)


def test_what_follows_an_upgrade_is_not_read(plain: Server) -> None:
    """A request after it, in the same segment, gets no answer."""
    with connected(plain.url) as raw:
        raw.sendall(GET + UPGRADE.replace(b"Host: x\r\n", b"") + b"\r\n" + GET + b"\r\n")
        assert statuses(rest(raw)) == [200]


def test_a_request_behind_a_body_larger_than_a_head_may_be_is_answered(plain: Server) -> None:
    """The body does not count towards the next request's head, wherever that is split."""
    post = b"POST /v1/enroll HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + bytes(20_000)
    following = GET + b"Connection: close\r\n\r\n"
    for cut in (1, 10, len(following) - 1):
        with connected(plain.url) as raw:
            raw.sendall(post + following[:cut])
            time.sleep(0.05)
            raw.sendall(following[cut:])
            assert statuses(rest(raw)) == [415, 200]


@pytest.mark.parametrize("hosts", [0, 2])
def test_a_request_has_one_host(plain: Server, hosts: int) -> None:
    """RFC 9112, section 3.2; HTTP/1.0 does not require one."""
    head = b"GET /v1/version HTTP/1.%d\r\n" + b"Host: x\r\n" * hosts + b"Connection: close\r\n\r\n"
    assert problem_of(asked(plain, head % 1))[:2] == (422, "invalid")
    assert statuses(asked(plain, head % 0)) == [422 if hosts else 200]


def test_an_early_answer_arrives_whole_and_ends_the_connection(plain: Server) -> None:
    """The rest of an unwanted body is read, so that the client does not lose the answer."""
    request = (
        b"PATCH /v1/runs/x/blobs/uploads/y HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n"
    )
    for _ in range(10):
        answer = asked(plain, request + bytes(3_000_000) + GET + b"\r\n")
        assert problem_of(answer)[:2] == (401, "unauthenticated")
        assert b"connection: close" in answer.lower()


def test_a_request_that_is_refused_for_its_body_is_not_carried_out(plain: Server) -> None:
    """Even when pipelined after another, so that it would start only after that one's answer."""
    fed = begun(plain)
    with plain.http(fed.tokens["a"]) as http:
        body = {"digest": "blake3:" + "0" * 64, "size": 2000}
        opened = http.post(paths.UPLOADS.format(run=fed.run.id), json=body).json()["upload"]
        path = paths.UPLOAD.format(run=fed.run.id, upload=opened)
        delete = (
            f"DELETE {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fed.tokens['a']}\r\n"
            "Transfer-Encoding: chunked\r\n\r\nnothing\r\n"
        )
        answers = asked(plain, GET + b"\r\n" + delete.encode())
        assert statuses(answers)[-1] == 400
        assert http.get(path).status_code == 200
