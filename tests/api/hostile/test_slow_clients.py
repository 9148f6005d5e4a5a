"""Clients that send or read slowly, over real sockets, against a server with tight limits."""

import contextlib
import select
import socket
import ssl
import threading
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
    settings = settings_for(tmp_path_factory.mktemp("hasty")).model_copy(
        update={"idle_seconds": IDLE_SECONDS}
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        serving(settings) as server,
        server.closing,
    ):
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


def test_a_slow_header_is_answered_408_and_closed(hasty: Server) -> None:
    """A byte every 0.1 s is never idle, but still misses the deadline."""
    started = time.monotonic()
    with connected(hasty.url) as raw:
        answer = trickle(raw, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Padding: " + b"y" * 200, 0.1)
        status, code, head = problem_of(answer)
    assert (status, code) == (408, "too_slow")
    assert b"connection: close" in head
    assert b"x-content-type-options: nosniff" in head
    assert IDLE_SECONDS * 0.9 < time.monotonic() - started < IDLE_SECONDS + 10


@pytest.mark.parametrize("first", [b"", b"\r\n", b"G"])
def test_a_connection_that_says_nothing_is_closed(hasty: Server, first: bytes) -> None:
    """Also if it has sent only bytes that the parser skips."""
    with connected(hasty.url) as raw:
        raw.sendall(first)
        started = time.monotonic()
        assert problem_of(rest(raw))[:2] == (408, "too_slow")
    assert time.monotonic() - started < IDLE_SECONDS + 10


def test_blank_lines_without_end_do_not_keep_a_connection(hasty: Server) -> None:
    """The deadline counts from the first byte, not from the last."""
    with connected(hasty.url) as raw:
        assert problem_of(trickle(raw, b"\r\n" * 100, 0.05))[0] == 408


def test_a_second_request_has_a_deadline_of_its_own(hasty: Server) -> None:
    """On a kept-alive connection, a slow header misses its deadline, too."""
    with connected(hasty.url) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        raw.sendall(b"GET /healthz HTT")
        assert problem_of(rest(raw))[0] == 408


def post(fed: Federation, length: int) -> bytes:
    """The head of a member's POST with a body of this length."""
    path = paths.SWAP_RESPONSES.format(run=fed.run.id, round=1, swap=1)
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


def test_chunk_framing_without_bytes_is_no_body(hasty: Server) -> None:
    """Endless chunk extensions do not count as progress."""
    fed = begun(hasty)
    head = post(fed, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with connected(hasty.url) as raw:
        raw.sendall(head + b"5;")
        assert problem_of(trickle(raw, b"x=y;" * 200, 0.05))[0] == 408


@pytest.mark.parametrize(
    "headers",
    [
        b"X-One: " + b"y" * 20_000 + b"\r\n",
        b"".join(b"X-%d: %s\r\n" % (n, b"y" * 90) for n in range(200)),
    ],
)
def test_headers_that_are_too_large_are_refused(hasty: Server, headers: bytes) -> None:
    """With 431, for one header or many, complete or not."""
    for end in (b"\r\n", b""):
        with connected(hasty.url) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + headers + end)
            assert problem_of(rest(raw))[:2] == (431, "headers_too_large")


def test_a_long_path_counts_as_a_header(hasty: Server) -> None:
    """The request line counts towards the same 16 KiB."""
    with connected(hasty.url) as raw:
        raw.sendall(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert problem_of(rest(raw))[0] == 431


def test_trailers_are_counted_too(hasty: Server) -> None:
    """A chunked body cannot be followed by endless headers."""
    fed = begun(hasty)
    head = post(fed, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with connected(hasty.url) as raw:
        raw.sendall(head + b"1\r\nx\r\n0\r\n" + b"X-Trailer: yyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 800)
        assert b" 431 " in rest(raw).split(b"\r\n", 1)[0]


def test_what_is_not_http_is_a_problem_too(hasty: Server) -> None:
    """A TLS ClientHello on a plain port gets a 400 with an error code."""
    with connected(hasty.url) as raw:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing).do_handshake()
        raw.sendall(outgoing.read())
        assert problem_of(rest(raw))[:2] == (400, "invalid")


def test_a_peer_that_never_reads_its_answer_is_dropped(hasty: Server) -> None:
    """Unread answers cannot pile up in the server's memory."""
    request = "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    dropped = threading.Event()
    with connected(hasty.url, receive_buffer=4096) as raw:
        raw.settimeout(0.5)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not dropped.is_set():
            try:
                raw.sendall(request.encode())
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                dropped.set()
    assert dropped.is_set()


def test_a_long_poll_outlives_every_deadline(hasty: Server) -> None:
    """After a complete request, a client may wait for as long as it asked to."""
    fed = begun(hasty, method="fedavg")
    fed.submit("a", 1, fed.adapter(1))
    started = time.monotonic()
    assert fed.members["a"].task(fed.run.id, 2).kind == "wait"
    assert time.monotonic() - started > 1.7


def test_slow_sockets_do_not_slow_an_honest_client(hasty: Server) -> None:
    """With 200 slow in headers or bodies, nine of ten requests take under 3 s."""
    fed = begun(hasty)
    with contextlib.ExitStack() as stack, hasty.http(None) as http:
        slow = [stack.enter_context(connected(hasty.url)) for _ in range(200)]
        for number, raw in enumerate(slow):
            raw.sendall(post(fed, 1000) + b"x" if number % 2 else b"GET /healthz HTTP/1.1\r\nA")
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
