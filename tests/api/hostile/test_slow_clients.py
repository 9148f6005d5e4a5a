"""Clients that send or read slowly, over real sockets, against a server with tight limits."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator

import pytest

from pubswap_protocol import paths
from pubswap_server.http import middleware
from support.chaos.raw_http import connected, problem_of, rest
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.eventually import until

IDLE_SECONDS = 1.0


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A coordinator with short timeouts."""
    settings = settings_for(tmp_path_factory.mktemp("hasty"))
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(settings) as server,
        server.closing,
    ):
        patch.setattr(middleware, "IDLE_SECONDS", IDLE_SECONDS)
        patch.setattr(middleware, "PIECE_BYTES", 2400)
        patch.setattr(middleware, "PIECE_SECONDS", 1.2)
        yield server


def trickle(raw: socket.socket, data: bytes, seconds: float) -> bytes:
    """Send a byte at a time until the server closes; returns its answer."""
    raw.settimeout(seconds)
    for place in range(len(data)):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            raw.sendall(data[place : place + 1])
        with contextlib.suppress(TimeoutError):
            if answer := raw.recv(65536):
                raw.settimeout(20)
                return answer + rest(raw)
            return b""
    raise AssertionError("the server kept the connection")


def post(fed: Federation, length: int) -> bytes:
    """The head of a member's POST with a body of this length."""
    path = paths.PUBLIC_STEP_RESPONSES.format(run=fed.run.id, round=1, public_step=1)
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fed.tokens['a']}\r\n"
        f"Content-Type: {paths.TENSORS_TYPE}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def test_a_body_that_stops_is_answered_408_and_leaves_nothing(hasty: Server) -> None:
    """No temporary file is left."""
    fed = begun(hasty)
    with connected(hasty.url) as raw:
        started = time.monotonic()
        raw.sendall(post(fed, 1000) + b"x" * 10)
        assert problem_of(rest(raw))[:2] == (408, "too_slow")
    assert IDLE_SECONDS * 0.9 < time.monotonic() - started < IDLE_SECONDS + 10
    until(lambda: not any(file.is_file() for file in hasty.data_dir.rglob("incoming/*")))


def test_of_a_chunk_that_stops_what_came_is_kept(hasty: Server) -> None:
    """After the 408, the upload continues from the bytes received."""
    fed = begun(hasty)
    with hasty.http(fed.tokens["a"]) as http:
        body = {"digest": "blake3:" + "0" * 64, "size": 2000}
        opened = http.post(paths.UPLOADS.format(run=fed.run.id), json=body).json()["upload"]
        path = paths.UPLOAD.format(run=fed.run.id, upload=opened)
        head = (
            f"PATCH {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fed.tokens['a']}\r\n"
            f"Content-Range: 0-1999\r\nContent-Length: 2000\r\n\r\n"
        )
        with connected(hasty.url) as raw:
            raw.sendall(head.encode() + b"x" * 700)
            assert problem_of(rest(raw))[:2] == (408, "too_slow")
        assert http.get(path).json()["offset"] == 700


def test_a_trickled_body_is_given_up_and_one_that_keeps_the_rate_is_not(hasty: Server) -> None:
    """A byte every 0.1 s is too slow; 1,500 bytes every 0.1 s may go on past the time limit."""
    fed = begun(hasty, grpo={"max_response_tokens": 1000})
    with connected(hasty.url) as raw:
        raw.sendall(post(fed, 1000))
        assert problem_of(trickle(raw, b"x" * 1000, 0.1))[0] == 408
    with connected(hasty.url) as raw:
        length = 1500 * 22  # seven times the minimum, because a busy machine may be slow
        raw.sendall(post(fed, length))
        for _ in range(22):
            raw.sendall(b"x" * 1500)
            time.sleep(0.1)
        status, code, _ = problem_of(raw.recv(65536))
    assert (status, code) == (422, "invalid_responses")


def test_a_fast_beginning_buys_no_slow_hours(hasty: Server) -> None:
    """Each piece of a body has its own deadline, however fast the earlier ones came."""
    fed = begun(hasty, grpo={"max_response_tokens": 1000})
    with connected(hasty.url) as raw:
        raw.sendall(post(fed, 50_000) + b"x" * 40_000)
        started = time.monotonic()
        assert problem_of(trickle(raw, b"x" * 1000, 0.1))[0] == 408
    assert time.monotonic() - started < 10


def test_a_long_poll_outlives_every_deadline(hasty: Server) -> None:
    """After a complete request, a client may wait for as long as it asked to."""
    fed = begun(hasty, method="fedavg")
    fed.submit("a", 1, fed.adapter(1))
    started = time.monotonic()
    assert fed.members["a"].task(fed.run.id, 2).kind == "wait"
    assert time.monotonic() - started > 1.7


def test_slow_sockets_do_not_slow_an_honest_client(hasty: Server) -> None:
    """With 200 slow bodies, nine of ten requests take under 3 s."""
    fed = begun(hasty)
    with contextlib.ExitStack() as stack, hasty.http(None) as http:
        slow = [stack.enter_context(connected(hasty.url)) for _ in range(200)]
        for raw in slow:
            raw.sendall(post(fed, 1000) + b"x")
        # Not measured: 200 connections are accepted at once. Keeping them open must cost nothing.
        assert http.get(paths.READY).status_code == 200
        times: list[float] = []
        over = time.monotonic() + 2.5
        while time.monotonic() < over or len(times) < 15:
            # Sending on an answered connection, which is closed, would lose the answer.
            for raw in set(slow) - set(select.select(slow, [], [], 0)[0]):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    raw.send(b"y")
            started = time.monotonic()
            assert http.get(paths.READY).status_code == 200
            times.append(time.monotonic() - started)
            time.sleep(0.05)
        answers = [rest(raw) for raw in slow]
    # Less than the slow clients' own deadline. The slowest tenth may be the machine's doing.
    assert sorted(times)[int(0.9 * len(times))] < 3
    assert all(not answer or b" 408 " in answer[:16] for answer in answers)
    assert sum(b" 408 " in answer[:16] for answer in answers) > 100
