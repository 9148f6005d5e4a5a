"""The relay's polling of its folder: unusual files, bad answers, and a folder that goes away."""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from pubswap_client.coordinator import relay as relaying
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.relay import Relay
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.coordinator.spool import Answered, Asked, Refused, read, write
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_protocol.errors import InvalidSettings, ProblemDetails
from support.eventually import until

NAME = "0123456789abcdef" * 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A relay's folder with one waiting request."""
    (folder := tmp_path / "relay").mkdir(mode=0o700)
    message = Asked(name=NAME, method="GET", target="/v1/version", headers=[])
    write(folder / f"{NAME}.request", [], message)
    return folder


@pytest.fixture
def serve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a relay until no request is left; `answers` plays the coordinator."""
    monkeypatch.setattr(relaying, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(relaying, "IDLE_SECONDS", 0.5)

    def run(answers: Callable[[httpx.Request], httpx.Response]) -> None:
        http = httpx.Client(transport=httpx.MockTransport(answers))
        monkeypatch.setattr(relaying, "open_http", lambda *_: http)
        Relay(folder, "http://coordinator", TlsFiles()).run(once=True)

    return run


def said(folder: Path) -> tuple[Answered, bytes]:
    """The answer in the folder, with its body."""
    answered, file, size = read(folder / f"{NAME}.answer", Answered)
    with file:
        return answered, file.read(size)


def good(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=iter([b"good"]))


def test_with_once_it_stays_after_an_answer(serve: Callable[..., None]) -> None:
    """A daemon whose long poll outlasts the relay's idle time asks again after its answer."""
    answered = 0.0

    def late(request: httpx.Request) -> httpx.Response:
        nonlocal answered
        time.sleep(0.6)
        answered = time.monotonic()
        return good(request)

    serve(late)
    assert time.monotonic() - answered >= relaying.IDLE_SECONDS


def test_an_operator_s_delete_goes_through_it(
    folder: Path, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PUBSWAP_RELAY set, `pubswap run delete` sends its DELETE through the relay."""
    monkeypatch.setenv("PUBSWAP_RELAY", str(folder))
    api = CoordinatorClient("http://coordinator", "secret", Backoff(tries=1))
    asked: list[httpx.Request] = []

    def gone(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(204, content=iter([]))

    with ThreadPoolExecutor(1) as operator, api:
        deleted = operator.submit(api.delete_run, "0123")
        until(lambda: deleted.done() or len(list(folder.glob("*.request"))) > 1)
        serve(gone)
        deleted.result()
    assert ("DELETE", "/v1/runs/0123") in [(each.method, each.url.path) for each in asked]


def test_an_answer_stays_until_it_is_read(
    folder: Path, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a scan listed its request just before the answer was written."""
    before, glob, looks = threading.active_count(), Path.glob, 0
    answering = threading.Event()

    def slow(path: Path, pattern: str) -> Iterator[Path]:
        nonlocal looks
        looks += 1
        found = list(glob(path, pattern))
        if looks == 2:
            assert found == [folder / f"{NAME}.request"]
            answering.set()
            until(lambda: threading.active_count() == before)
        return iter(found)

    def after_a_while(request: httpx.Request) -> httpx.Response:
        assert answering.wait(60)
        return good(request)

    monkeypatch.setattr(Path, "glob", slow)
    serve(after_a_while)
    assert looks > 2
    assert said(folder)[1] == b"good"


@pytest.mark.parametrize("what", ["look_again", "glob", "sweep"])
def test_a_folder_that_is_away_for_a_while_is_waited_for(
    what: str,
    folder: Path,
    serve: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log reports it once."""
    place: object = relaying if what == "look_again" else Path
    name = "iterdir" if what == "sweep" else what
    works, failures = getattr(place, name), iter([OSError(116, "Stale file handle")] * 3)

    def failing(*arguments: object) -> object:
        for error in failures:
            raise error
        return works(*arguments)

    monkeypatch.setattr(place, name, failing)
    with caplog.at_level(logging.INFO):
        serve(good)
    assert said(folder)[1] == b"good"
    assert [record.message.count("Stale file handle") for record in caplog.records].count(1) == 1


def test_a_folder_without_locks_is_refused(
    folder: Path, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what to do; the file is closed."""
    tried = list[int]()

    def flock(descriptor: int, how: int) -> None:
        tried.append(descriptor)
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(InvalidSettings, match=r"relay/lock cannot be locked.*No locks available"):
        serve(good)
    (descriptor,) = tried
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_an_answer_has_the_headers_that_members_read(
    folder: Path, serve: Callable[..., None]
) -> None:
    """A proxy's headers are dropped, however they are spelled."""
    headers = [("X_Odd", "1"), ("ETag", '"e"'), ("Connection", "close"), ("Set-Cookie", "x" * 70)]
    serve(lambda _: httpx.Response(200, headers=headers, content=iter([b"good"])))
    answered, body = said(folder)
    assert (answered.headers, body) == ([("etag", '"e"')], b"good")


@pytest.mark.parametrize(
    "reply",
    [
        {"status_code": 999},
        {"status_code": 200, "headers": {"ETag": "x" * 20_000}},
        {"status_code": 302, "headers": {"Location": "mailto:help@proxy"}},
    ],
    ids=["status", "header", "way"],
)
def test_an_unusable_answer_is_reported(
    reply: dict[str, object], folder: Path, serve: Callable[..., None]
) -> None:
    """The client gets it as an error; the coordinator is asked once."""
    asked = []

    def odd(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(content=iter([b"odd"]), **reply)  # type: ignore[arg-type]

    serve(odd)
    problem = ProblemDetails.model_validate_json(said(folder)[1])
    assert (problem.code, len(asked)) == ("unreachable", 1)


def test_an_answer_without_an_end_is_cut(
    folder: Path, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut at the size of the largest blob and marked as cut."""
    monkeypatch.setattr(relaying, "LARGEST_BYTES", 10)

    def endless() -> Iterator[bytes]:
        while True:
            yield b"more"

    serve(lambda _: httpx.Response(200, content=endless()))
    answered, body = said(folder)
    assert (answered.cut, body) == (True, b"moremore")


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_anything_but_a_regular_file_is_refused(kind: str, tmp_path: Path) -> None:
    """It is an error that is not retried, unlike a temporary one of the disk."""
    odd = tmp_path / f"{NAME}.request"
    if kind == "link":
        odd.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        odd.mkdir()
    else:
        os.mkfifo(odd)
    with pytest.raises(Refused, match="not a regular file of ours"):
        read(odd, Asked)
