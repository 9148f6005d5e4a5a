"""The HTTP client's handling of every kind of answer, through httpx's mock transport."""

import gzip
import itertools
import time
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from pubswap_client.coordinator import connection, retry
from pubswap_client.coordinator.bucket import Bucket
from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import ONCE, Backoff
from pubswap_client.coordinator.route import open_http
from pubswap_client.coordinator.tls import PUBLIC
from pubswap_client.coordinator.transfers import BlobRequests
from pubswap_client.demo.demos import MODEL
from pubswap_client.operator.watching import line
from pubswap_protocol import paths
from pubswap_protocol.bounds import MAX_MEMBER_MESSAGE
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    DigestMismatch,
    InvalidSettings,
    NameTaken,
    ProtocolMismatch,
    ProxyFault,
    RoundClosed,
    ServerFault,
    TooManyRequests,
    UnknownBlob,
    Unreachable,
)
from pubswap_protocol.messages import Away, OpenUpload, RunList
from pubswap_protocol.model import model_card
from support.coordinator.coordinator import merged

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler, backoff: Backoff = ONCE) -> CoordinatorClient:
    """A client whose requests go to `handler`."""
    return CoordinatorClient("http://c", "secret", backoff, httpx.MockTransport(handler))


def test_a_call_is_retried_if_the_answer_is_no_message() -> None:
    """A proxy may answer instead of the coordinator, even with JSON."""
    version = httpx.Response(200, json={"software": "0.1.0", "protocol": "1"})
    answers = [version, *(httpx.Response(200, content=text) for text in (b"", b"{}", b"[]"))]
    at_once = Backoff(base_seconds=0.0)
    assert client(lambda request: answers.pop(), at_once).version().protocol == "1"
    long = httpx.Response(200, json={"software": ["x" * 1000] * 1000, "protocol": 1})
    with pytest.raises(ServerFault) as raised:
        client(lambda request: long).version()
    assert len(raised.value.detail) < 400


def test_every_request_carries_token_and_protocol_version() -> None:
    """The coordinator can tell who is asking and in which protocol version."""
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"software": "0.1.0", "protocol": paths.PROTOCOL_VERSION})

    client(handler).check_version()
    assert seen[0].headers["Authorization"] == "Bearer secret"
    assert seen[0].headers[paths.PROTOCOL_HEADER] == paths.PROTOCOL_VERSION


def test_another_protocol_version_is_refused() -> None:
    """The message names both versions."""
    answer = httpx.Response(200, json={"software": "9", "protocol": "9"})
    with pytest.raises(ProtocolMismatch, match="protocol 9, this client 2"):
        client(lambda request: answer).check_version()


@pytest.mark.parametrize("error", [NameTaken("taken"), RoundClosed("closed")])
def test_a_problem_is_raised_as_the_class_the_server_raised(
    error: NameTaken | RoundClosed,
) -> None:
    """problem+json becomes the same error again, with its detail."""
    body = error.problem().model_dump()
    with pytest.raises(type(error), match=error.detail):
        client(lambda request: httpx.Response(error.status, json=body)).version()


PAGE = "<html><TITLE>\n Blocked \x1b[31m by policy </title>…"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(502, text="<html>"), r"answered 502, not by a coordinator"),
        (httpx.Response(200, html=PAGE), r"answered 200 \(“Blocked \[31m by policy”\)"),
        (httpx.Response(302, headers={"Location": "https://login"}), r"302 \(“https://login”\)"),
    ],
)
def test_a_proxy_s_answer_is_not_taken_for_the_coordinator_s(
    answer: httpx.Response, said: str
) -> None:
    """Its error page, its page with status 200 and its redirect to a login do not count as an
    answer.
    """
    api = client(lambda request: answer)
    with pytest.raises(ProxyFault, match=said) as refused:
        api.away("run", Away(code="denied", detail="no"))
    assert refused.value.retryable
    with pytest.raises(ProxyFault, match=said):
        api.blob("run", digest_of(b"data"))


def test_a_redirect_to_an_unusable_address_is_no_answer() -> None:
    """A proxy's redirect to an unusable address counts as no answer."""
    api = client(lambda request: httpx.Response(302, headers={"Location": "mailto:help@proxy"}))
    with pytest.raises(Unreachable, match="cannot be reached"):
        api.version()


def test_an_answer_of_another_shape_is_a_server_fault() -> None:
    """A body that does not fit the expected message is refused."""
    with pytest.raises(ServerFault, match="gave an unexpected answer"):
        client(lambda request: httpx.Response(200, json={"hello": 1})).version()


class Answer(httpx.SyncByteStream):
    """A response body of a thousand chunks of JSON whitespace, which counts the chunks read."""

    read = 0

    def __init__(self, size: int = 100) -> None:
        self._piece = b" " * size

    def __iter__(self) -> Iterator[bytes]:
        for self.read in range(1, 1001):
            yield self._piece


def test_an_answer_is_read_only_up_to_the_size_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An endless body would otherwise fill the memory."""
    monkeypatch.setattr(connection, "LARGEST_MESSAGE", 1000)
    answer = Answer()
    with pytest.raises(ServerFault, match="more than 1,000 bytes"):
        client(lambda request: httpx.Response(200, stream=answer)).version()
    assert answer.read == 11


@pytest.mark.parametrize(("status", "most"), [(200, 1 << 24), (503, 1 << 20)])
def test_a_member_refuses_a_message_too_large_for_its_memory(status: int, most: int) -> None:
    """A byte of JSON may take seventy in memory; the limit for an error's body also applies to
    operators.
    """
    answer = Answer(most >> 4)
    on_send = (lambda *_: None) if status == 200 else None
    transport = httpx.MockTransport(lambda request: httpx.Response(status, stream=answer))
    with pytest.raises(ServerFault, match=f"more than {most:,} bytes"):
        CoordinatorClient("http://c", None, ONCE, transport, on_send=on_send).version()
    assert answer.read == 17


@pytest.mark.parametrize("value", [b'[{"a":{}}]', b"[]", b'{"a":1}', b"1"])
def test_a_member_refuses_a_message_of_too_many_values(value: bytes) -> None:
    """Two bytes of JSON may take a thousand in memory, even in a field that is ignored."""
    count = (MAX_MEMBER_MESSAGE - 1024) // (len(value) + 1)
    later = b",".join([value] * count)
    whole = b'{"software":"1","protocol":"1","later":[' + later + b"]}"
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=whole))
    with pytest.raises(ServerFault, match="more than 1,048,576 values"):
        CoordinatorClient("http://c", None, ONCE, transport, on_send=lambda *_: None).version()


def test_steps_are_read_in_whatever_order_a_database_has_the_members() -> None:
    """A locale puts banka before bank-b; a page that goes back is refused."""
    places = [("banka", 1, 1), ("banka", 1, 2), ("bank-b", 1, 1)]
    pages, asked = [places[:2], places[2:], []], list[str | None]()

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("after"))
        at = "2026-11-29T12:00:00Z"
        rows = [
            {"member": member, "round": round_, "step": step, "at": at}
            for member, round_, step in pages[len(asked) - 1]
        ]
        return httpx.Response(200, json={"steps": rows})

    found = [(each.member, each.round, each.step) for each in client(handler).steps("r")]
    assert (found, asked) == (places, [None, "banka:1:2", "bank-b:1:1"])
    asked.clear()
    pages[1:] = [places[1:], []]
    with pytest.raises(ServerFault, match="does not continue"):
        list(client(handler).steps("r"))


def test_only_one_of_many_invalid_entries_is_reported() -> None:
    """Each reported error takes a thousand times the memory of the entry itself."""
    with pytest.raises(ValidationError) as raised:
        RunList.model_validate({"runs": [0] * 1000})
    assert raised.value.error_count() == 1


def test_an_exchange_is_read_no_further_than_the_run_s_settings_allow() -> None:
    """The caller passes its size limit, as for an adapter."""
    answer = Answer()
    with pytest.raises(ServerFault, match="more than 1,000 bytes"):
        client(lambda request: httpx.Response(200, stream=answer)).exchanged(
            "r", 1, 1, max_bytes=1000
        )
    assert answer.read == 11


def test_cookies_are_neither_kept_nor_sent() -> None:
    """A coordinator needs none, and could otherwise set more with every answer."""
    sent = list[str | None]()

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("Cookie"))
        return httpx.Response(204, headers={"Set-Cookie": f"name-{len(sent)}=value"})

    http = open_http(httpx.URL("http://c"), PUBLIC, None, transport=httpx.MockTransport(handler))
    with http:
        for _ in range(2):
            http.get("http://c/")
    assert (sent, len(http.cookies)) == ([None, None], 0)


def test_a_compressed_answer_is_not_decompressed() -> None:
    """A few compressed bytes may expand to any size, so the client asks for no compression."""
    packed = gzip.compress(b'{"software": "0.1.0", "protocol": "1"}')

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        headers = {"Content-Encoding": "gzip"}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(packed))

    with pytest.raises(ProxyFault, match="Content-Encoding gzip, which was not requested"):
        client(handler).version()


def test_a_coordinator_that_is_not_there_yet_is_waited_for() -> None:
    """Refused connections are retried until one succeeds."""
    answers = [httpx.ConnectError("refused")] * 2

    def handler(request: httpx.Request) -> httpx.Response:
        if answers:
            raise answers.pop()
        return httpx.Response(200, json={"software": "0.1.0", "protocol": "1"})

    assert client(handler, Backoff(base_seconds=0.001)).version().protocol == "1"


@pytest.mark.parametrize("host", ["coordinator..example.org", "c" * 64])
def test_an_impossible_host_name_cannot_be_reached(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same message covers a mistyped proxy host."""
    api = CoordinatorClient(f"http://{host}", "secret", ONCE)
    monkeypatch.setenv("HTTP_PROXY", f"http://{host}:3128")
    for asked in (api, CoordinatorClient("http://coordinator.invalid", "secret", ONCE)):
        with pytest.raises(Unreachable, match="is the address right"):
            asked.version()


def test_an_unreachable_coordinator_says_what_to_check() -> None:
    """The message names the address and the likely cause."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable, match=r"http://c cannot be reached.*Is it running"):
        wait_until_ready(client(handler), 0.0)


def test_a_coordinator_without_tls_and_an_address_without_scheme_are_recognised() -> None:
    """The message says what the address must begin with."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")

    with pytest.raises(Unreachable, match="begins with http://"):
        wait_until_ready(client(handler), 0.0)
    with pytest.raises(InvalidSettings, match="the scheme is missing, http:// or https://"):
        CoordinatorClient("127.0.0.1:8470")


def test_an_address_with_a_user_and_a_password_is_refused_without_repeating_them() -> None:
    """httpx would send them in place of the token."""
    with pytest.raises(InvalidSettings, match=r"use https://c:8470/x\.") as raised:
        CoordinatorClient("https://ada:secret@c:8470/x", "token", ONCE)
    assert "secret" not in raised.value.detail


def test_an_operator_is_not_told_to_enrol_for_a_private_ca() -> None:
    """For an unknown CA, the advice is an option that both sides' commands have."""

    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    with pytest.raises(
        Unreachable, match=r"`--ca-file` \(an organisation does so when it enrols\)"
    ):
        wait_until_ready(client(handler), 0.0)


def body(data: bytes, status: int = 200, **headers: str) -> httpx.Response:
    """A streamed response with these bytes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(
        status, content=iter([data]), headers={"Content-Length": str(len(data)), **named}
    )


def session(**changes: object) -> httpx.Response:
    """A response that describes an open upload of b"data"."""
    message = {"upload": "u", "digest": digest_of(b"data"), "size": 4, "offset": 0}
    more = {
        "stored": False,
        "chunk_bytes": 3,
        "largest_chunk_bytes": 3,
        "expires_at": "2026-01-01T00:00:00Z",
    }
    return httpx.Response(200, json={**message, **more, **changes})


def test_bytes_that_are_not_what_the_digest_names_are_refused() -> None:
    """A blob is hashed on receipt."""
    with pytest.raises(DigestMismatch):
        client(lambda request: body(b"other")).blob("r", digest_of(b"this"))


def test_after_a_cut_the_rest_of_the_same_blob_is_asked_for() -> None:
    """The second request gives the range and the digest of the blob that the first bytes came
    from.
    """
    seen: list[httpx.Request] = []

    def cut() -> Iterator[bytes]:
        yield b"da"
        raise httpx.ReadError("cut")

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) == 1:
            return httpx.Response(200, content=cut(), headers={"Content-Length": "4"})
        return body(b"ta", 206, Content_Range="bytes 2-3/4")

    digest = digest_of(b"data")
    assert client(handler, Backoff(base_seconds=0, tries=2)).blob("r", digest) == b"data"
    assert "Range" not in seen[0].headers
    assert (seen[1].headers["Range"], seen[1].headers["If-Range"]) == ("bytes=2-", f'"{digest}"')


@pytest.mark.parametrize("range_", ["", "bytes */4", "bytes 2-3/*", "chunks 2-3/4"])
def test_a_part_that_does_not_say_where_it_belongs_is_refused(range_: str) -> None:
    """An unreadable Content-Range is an error."""
    with pytest.raises(ServerFault, match="Content-Range"):
        answer = body(b"data", 206, Content_Range=range_)
        client(lambda request: answer).blob("r", digest_of(b"data"))


def test_a_global_adapter_is_fetched_under_the_digest_that_it_is_announced_with() -> None:
    """A request for one byte returns the digest; a file without one yet is accepted as it is."""
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Range"))
        if len(seen) > 1:
            return body(b"data")
        etag = f'"{digest_of(b"data")}"'
        first = body(b"d", 206, Content_Range="bytes 0-0/4", ETag=etag)
        first.headers[paths.ROUND_HEADER] = "3"
        return first

    assert client(handler).global_adapter("r", "final") == b"data"
    assert seen == ["bytes=0-0", None]
    whole = body(b"stack")
    whole.headers[paths.ROUND_HEADER] = "3"
    assert client(lambda request: whole).adapter_of_round("r", "final") == (3, b"stack")
    long = body(b"stack")
    long.headers[paths.ROUND_HEADER] = "3" * 5000  # more digits than Python converts to an int
    with pytest.raises(ServerFault, match=paths.ROUND_HEADER):
        client(lambda request: long).adapter_of_round("r", "final")


def test_a_refused_download_raises_the_coordinator_s_error() -> None:
    """problem+json is recognised in a streamed answer too."""
    problem = UnknownBlob("not here").problem().model_dump()
    with pytest.raises(UnknownBlob, match="not here"):
        client(lambda request: httpx.Response(404, json=problem)).blob("r", digest_of(b"this"))


def test_a_blob_that_the_coordinator_has_is_not_sent_again() -> None:
    """A known digest costs one POST without the blob."""
    methods: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        return session(upload=None, stored=True, offset=4, expires_at=None)

    assert client(handler).put_blob("r", b"data") == digest_of(b"data")
    assert methods == ["POST"]


def test_an_upload_goes_in_chunks_and_ends_with_its_digest() -> None:
    """Each chunk gives its byte range; the last request gives the digest of the whole."""
    seen: list[tuple[str, str | None, bytes]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        content = b"".join(bytes(piece) for piece in request.stream)  # type: ignore[union-attr]
        seen.append((request.method, request.headers.get("Content-Range"), content))
        if request.method == "PUT":
            assert request.url.params["digest"] == digest_of(b"data")
            return httpx.Response(201, json={"digest": digest_of(b"data"), "size": 4})
        return session() if request.method == "POST" else httpx.Response(202)

    client(handler).put_blob("r", b"data")
    patches = [("PATCH", "0-2", b"dat"), ("PATCH", "3-3", b"a")]
    assert seen[1:] == [*patches, ("PUT", None, b"")]


def test_a_session_without_a_name_is_a_server_fault() -> None:
    """An answer must either be stored or name an upload session."""
    with pytest.raises(ServerFault, match="gave no session"):
        client(lambda request: session(upload=None)).put_blob("r", b"data")


def part(first: int, size: int) -> dict[str, Any]:
    """A part of an upload straight to a bucket."""
    return {"first": first, "size": size, "url": "https://s3.example/bucket/part"}


@pytest.mark.parametrize(
    "tiny", [{"chunk_bytes": 1}, {"largest_chunk_bytes": 1}, {"parts": [part(0, 1)]}]
)
def test_a_blob_is_not_sent_byte_by_byte(tiny: dict[str, Any]) -> None:
    """Each chunk or part is a separate request and ledger entry; only the last may be small."""
    data, sizes = bytes(1 << 17), {"chunk_bytes": 1 << 16, "largest_chunk_bytes": 1 << 16}
    announced = OpenUpload(digest=digest_of(data), size=len(data))
    opened: dict[str, Any] = {**announced.model_dump(), **sizes}
    with pytest.raises(ServerFault, match="tiny chunks"):
        client(lambda request: session(**opened | tiny)).put_blob("r", data)
    opened["parts"] = [part(0, len(data) - 1), part(len(data) - 1, 1)]
    requests = BlobRequests(client(lambda request: session(**opened)), "r")
    assert requests.open(announced).parts == []  # no bucket is allowed


def test_what_a_coordinator_says_moves_no_cursor() -> None:
    """Control characters are replaced, because these texts reach a terminal as they are."""
    said, told = "b\x1b[2J", list[str]()
    answers = [
        httpx.Response(200, json={"kind": "wait", "state": "training", "waits_for": said}),
        httpx.Response(204, headers={paths.WAITS_HEADER: said}),
        httpx.Response(200),
    ]
    api = client(lambda request: answers.pop(0))
    assert api.task("r").waits_for == "b [2J"
    api.exchanged("r", 1, 1, told.append)
    assert told == ["b [2J"]
    run = shown_run(0) | {"requires": [said], "verifier_version": said}
    run["model"] = run["model"] | {"source": said, "revision": said, "architecture": said}
    shown = client(lambda request: httpx.Response(200, json=run)).run("r")
    names = (shown.model.source, shown.model.revision, shown.model.architecture)
    assert {*names, *shown.requires, shown.verifier_version} == {"b [2J"}
    event = {"id": 1, "at": "2026-01-01T00:00:00Z", "kind": said, "details": {said: said}}
    log = client(lambda request: httpx.Response(200, json={"events": [event]})).events("r")
    assert line(log.events[0]).isprintable()


def test_what_a_coordinator_says_fills_no_log() -> None:
    """Long texts are cut, because each retry and each idle answer logs them again."""
    problem = TooManyRequests("x" * 1_000_000).problem().model_dump()
    with pytest.raises(TooManyRequests) as raised:
        client(lambda request: httpx.Response(429, json=problem)).version()
    waits = {"kind": "wait", "state": "training", "waits_for": "x" * 1_000_000}
    task = client(lambda request: httpx.Response(200, json=waits)).task("r")
    assert task.waits_for == raised.value.detail == "x" * 10_000


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("999999999", 3600.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None)],
)
def test_an_error_carries_the_time_to_wait(header: str, seconds: float | None) -> None:
    """Retry-After is accepted in seconds, up to an hour."""
    problem = TooManyRequests().problem().model_dump()
    answer = httpx.Response(429, json=problem, headers={"Retry-After": header})
    with pytest.raises(TooManyRequests) as raised:
        client(lambda request: answer).version()
    assert raised.value.retry_after == seconds


def test_an_open_exchange_is_asked_for_until_it_is_closed() -> None:
    """204 means not yet."""
    answers = [httpx.Response(200, content=b"groups"), httpx.Response(204), httpx.Response(204)]
    assert client(lambda request: answers.pop()).exchanged("r", 1, 1) == b"groups"
    assert not answers


@pytest.mark.parametrize("charset", ["zlib", "hex", "undefined"])
def test_a_quoted_page_is_not_decoded_by_a_codec_that_is_not_for_text(charset: str) -> None:
    """Some of Python's charsets decompress, and others are not for text."""
    packed, kind = zlib.compress(b"a page"), f"text/html; charset={charset}"
    answer = httpx.Response(502, content=packed, headers={"Content-Type": kind})
    with pytest.raises(ProxyFault, match="answered 502, not by a coordinator"):
        client(lambda request: answer).version()


def test_a_title_is_only_looked_for_at_the_beginning_of_a_page() -> None:
    """Searching a page of many unclosed titles would take quadratic time."""
    with pytest.raises(ProxyFault, match="answered 502"):
        client(lambda request: httpx.Response(502, html="<title" * 100_000)).version()


def page(*rounds: int) -> httpx.Response:
    """A response with these rounds."""
    return httpx.Response(200, json={"rounds": [{"round": number} for number in rounds]})


@pytest.mark.parametrize("second", [(0, 1), (1,), (2, 2), (4, 3)])
def test_pages_that_do_not_continue_the_last_one_are_refused(second: tuple[int, ...]) -> None:
    """A coordinator could otherwise repeat a page forever."""
    answers = [page(0, 1), page(*second)]
    rounds = client(lambda request: answers.pop(0)).rounds("r")
    with pytest.raises(ServerFault, match="does not continue"):
        list(rounds)


def test_rounds_that_a_run_cannot_have_are_not_asked_for() -> None:
    """Otherwise a coordinator could add pages forever."""
    asked = itertools.count()
    rounds = client(lambda request: page(next(asked))).rounds("r", last=5)
    assert [each.round for each in rounds] == [0, 1, 2, 3, 4, 5]
    assert next(asked) == 7


def shown_run(round_: int) -> dict[str, Any]:
    """A run as a coordinator returns it."""
    settings = merged({})
    card = model_card(MODEL, settings.lora, "org/model", None)
    return {
        **{"id": "r", "name": "run", "state": "training", "paused": False, "round": round_},
        **{"settings": settings.model_dump(mode="json"), "model": card.model_dump(mode="json")},
        "created_at": "2026-01-01T00:00:00Z",
    }


def test_a_timestamp_without_a_time_zone_is_refused() -> None:
    """Another machine would read it as a different time."""
    naive = shown_run(0) | {"created_at": "2026-01-01T00:00:00"}
    with pytest.raises(ServerFault, match="created_at"):
        client(lambda request: httpx.Response(200, json=naive)).run("r")


def test_another_run_than_was_asked_for_is_refused() -> None:
    """A member's denial and spent epsilon are of an id, so a denied run must not have another."""
    answer = httpx.MockTransport(lambda request: httpx.Response(200, json=shown_run(0)))
    operator = CoordinatorClient("http://c", "secret", ONCE, answer)
    member = CoordinatorClient("http://c", "secret", ONCE, answer, on_send=lambda *sent: None)
    shown = [operator.run("r"), operator.run("run"), member.run("r")]
    assert [run.id for run in shown] == ["r"] * 3
    for api, run in ((operator, "another"), (member, "run")):
        with pytest.raises(ServerFault, match=r"answered with another run: run \(r\)"):
            api.run(run)


def test_repeated_runs_and_a_log_that_goes_back_are_refused() -> None:
    """As for rounds, each page must continue the last one."""
    with pytest.raises(ServerFault, match="does not continue"):
        client(lambda request: httpx.Response(200, json={"runs": [shown_run(0)]})).runs()
    events = [{"id": 7, "at": "2026-01-01T00:00:00Z", "kind": "opened", "details": {}}]
    api = client(lambda request: httpx.Response(200, json={"events": events}))
    assert api.events("r", 6).events
    with pytest.raises(ServerFault, match="does not continue"):
        api.events("r", 7)


def test_a_run_that_changes_on_every_read_is_given_up() -> None:
    """A run that changes between all reads looks the same as a coordinator that lies."""
    moved = itertools.count()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("rounds"):
            return page()
        return httpx.Response(200, json=shown_run(next(moved)))

    with pytest.raises(ServerFault, match="changed every time"):
        client(answer).whole_run("r")
    assert next(moved) < 100


def test_more_bytes_than_a_blob_can_have_are_not_received() -> None:
    """The announced length alone is enough to refuse it."""
    answer = body(b"data")
    with pytest.raises(ServerFault, match=r"announced 4 bytes; at most 3 are possible"):
        client(lambda request: answer).blob("r", digest_of(b"data"), max_bytes=3)


def test_an_exchange_that_is_open_is_not_asked_for_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator that answers 204 at once is asked only every two seconds."""
    waits: list[float] = []
    clock = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
    monkeypatch.setattr(retry, "time", clock)
    answers = [httpx.Response(200, content=b"groups"), *[httpx.Response(204)] * 9]
    assert client(lambda request: answers.pop()).exchanged("r", 1, 1) == b"groups"
    assert waits == [2.0] * 6


def test_the_address_of_a_bucket_that_is_not_allowed_moves_no_cursor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The coordinator chooses the address, and the daemon logs that it is not used."""
    bucket = Bucket(lambda: ("https://s3.example/bucket",), PUBLIC, {})
    assert not bucket.allows("https://evil.example/\x1b[2J?secret")
    assert "the policy does not list https://evil.example/ [2J in its buckets" in caplog.text
