"""HTTP/1.1 connections: pipelining, upgrades, framing, and the order of answers."""

import contextlib
import re
import time
from collections.abc import Iterator

import pytest

from pubswap_protocol import paths
from support.chaos.raw_http import connected, problem_of, rest
from support.coordinator.coordinator import Server, begun, serving, settings_for

PATIENCE_SECONDS = 1.5
UPGRADE = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
GET = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A coordinator with short timeouts."""
    settings = settings_for(tmp_path_factory.mktemp("hasty")).model_copy(
        update={"idle_seconds": PATIENCE_SECONDS}
    )
    with serving(settings) as server, server.closing:
        yield server


def statuses(answers: bytes) -> list[int]:
    """The status codes of all responses, in order."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def asked(server: Server, data: bytes) -> bytes:
    """Send these bytes; returns everything received until the coordinator closes."""
    with connected(server.url) as raw:
        raw.sendall(data)
        return rest(raw)


@pytest.mark.parametrize(
    "body", [b"Content-Length: 1\r\n\r\nx", b"Content-Length: 9\r\n\r\nx", b"\r\n"]
)
def test_an_upgrade_is_ignored_and_its_connection_closed_in_time(
    hasty: Server, body: bytes
) -> None:
    """No other protocol is spoken here, and an upgrade does not lift the deadlines."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connected(hasty.url)) for _ in range(50)]
        since = time.monotonic()
        for raw in held:
            raw.sendall(b"POST /nothing HTTP/1.1\r\n" + UPGRADE + body)
        answers = [statuses(rest(raw)) for raw in held]
    assert answers == [[404]] * 50
    assert time.monotonic() - since < PATIENCE_SECONDS + 10


def test_what_follows_an_upgrade_is_not_read(hasty: Server) -> None:
    """A request after it gets no answer, whether in the same segment or in the next."""
    with connected(hasty.url) as raw:
        raw.sendall(GET + UPGRADE.replace(b"Host: x\r\n", b"") + b"\r\n" + GET + b"X-")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.sendall(b"A: 1\r\n\r\n" + GET + b"\r\n")
        assert statuses(rest(raw)) == [200]


def test_a_request_behind_a_body_larger_than_a_head_may_be_is_answered(hasty: Server) -> None:
    """The body does not count towards the next request's head, wherever that is split."""
    post = b"POST /v1/enroll HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + bytes(20_000)
    following = GET + b"Connection: close\r\n\r\n"
    for cut in (1, 10, len(following) - 1):
        with connected(hasty.url) as raw:
            raw.sendall(post + following[:cut])
            time.sleep(0.05)
            raw.sendall(following[cut:])
            assert statuses(rest(raw)) == [415, 200]


@pytest.mark.parametrize("hosts", [0, 2])
def test_a_request_has_one_host(hasty: Server, hosts: int) -> None:
    """RFC 9112, section 3.2; HTTP/1.0 does not require one."""
    head = b"GET /v1/version HTTP/1.%d\r\n" + b"Host: x\r\n" * hosts + b"Connection: close\r\n\r\n"
    assert problem_of(asked(hasty, head % 1))[:2] == (400, "invalid")
    assert statuses(asked(hasty, head % 0)) == [400 if hosts else 200]


def test_a_refusal_waits_for_the_answers_before_it(hasty: Server) -> None:
    """A pipelined bad request is answered after the requests before it."""
    answers = asked(hasty, (GET + b"\r\n") * 3 + b"what is this\r\n\r\n")
    assert statuses(answers) == [200, 200, 200, 400]


def test_a_connection_may_not_ask_without_end(hasty: Server) -> None:
    """Of thousands of pipelined requests some are answered, and the rest are dropped."""
    found = statuses(asked(hasty, (GET + b"\r\n") * 3000))
    assert set(found[:-1]) == {200} and found[-1] == 429
    assert 64 <= len(found) < 200


@pytest.mark.parametrize("endless", [b"5;", b"0\r\nX-Trailer: "])
def test_what_frames_a_body_is_bounded(hasty: Server, endless: bytes) -> None:
    """A chunk extension or a trailer that never ends is refused, and not buffered."""
    head = b"POST /v1/enroll HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(hasty.url) as raw:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.sendall(head + endless)
            for _ in range(100):
                raw.sendall(b"x" * 1000)
                time.sleep(0.002)
        assert statuses(rest(raw)) == [431]


def test_a_trailer_is_no_header(hasty: Server) -> None:
    """A trailer cannot authenticate the request."""
    fed = begun(hasty)
    path = paths.UPLOAD.format(run=fed.run.id, upload="0" * 32)
    head = (
        b"PATCH %s HTTP/1.1\r\nHost: x\r\nContent-Range: 0-0\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    trailer = f"1\r\nx\r\n0\r\nAuthorization: Bearer {fed.tokens['a']}\r\n\r\n".encode()
    assert statuses(asked(hasty, head % path.encode() + trailer)) == [401]


def test_an_early_answer_arrives_whole_and_ends_the_connection(hasty: Server) -> None:
    """The rest of an unwanted body is read, so that the client does not lose the answer."""
    request = (
        b"PATCH /v1/runs/x/blobs/uploads/y HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n"
    )
    for _ in range(10):
        answer = asked(hasty, request + bytes(3_000_000) + GET + b"\r\n")
        assert problem_of(answer)[:2] == (401, "unauthenticated")
        assert b"connection: close" in answer.lower()


def test_a_request_that_is_refused_for_its_body_is_not_carried_out(hasty: Server) -> None:
    """Even when pipelined after another, so that it would start only after that one's answer."""
    fed = begun(hasty)
    with hasty.http(fed.tokens["a"]) as http:
        body = {"digest": "blake3:" + "0" * 64, "size": 2000}
        opened = http.post(paths.UPLOADS.format(run=fed.run.id), json=body).json()["upload"]
        path = paths.UPLOAD.format(run=fed.run.id, upload=opened)
        delete = (
            f"DELETE {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fed.tokens['a']}\r\n"
            "Transfer-Encoding: chunked\r\n\r\nnothing\r\n"
        )
        answers = asked(hasty, GET + b"\r\n" + delete.encode())
        assert statuses(answers) == [200, 400]
        assert http.get(path).status_code == 200
