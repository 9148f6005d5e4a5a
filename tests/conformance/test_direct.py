"""Adapters uploaded to and downloaded from the bucket directly, on a real S3 server."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import httpx
import obstore
import pytest
from obstore.store import from_url

from pubswap_client.consent.ledger import Ledger, entries, ledger_folder
from pubswap_client.coordinator import bucket
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import DamagedBlob, UnknownBlob
from pubswap_protocol.messages import OpenUpload, UploadSession
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_server.conductor import maintenance
from pubswap_server.conductor.maintenance import sweep
from pubswap_server.http import upload_body
from pubswap_server.storage import presigned
from support.chaos.proxy import Fault, FaultProxy
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.coordinator.s3 import BUCKET, serving_s3

PART = 1000
QUICK = Backoff(base_seconds=0.01, cap_seconds=0.05, tries=20)


@dataclass
class Direct:
    """A coordinator on SQLite and a bucket, and the proxy through which members reach it."""

    server: Server
    proxy: FaultProxy
    folder: Path  # with the bucket's objects
    fed: Federation

    @property
    def allowed(self) -> str:
        """The bucket as a member's policy names it."""
        return f"{self.proxy.url}/{BUCKET}/prefix"

    def member(self, *buckets: str, name: str = "a", **options: Any) -> CoordinatorClient:
        """A member whose policy allows direct transfers with these buckets."""
        client = CoordinatorClient(
            self.server.url, self.fed.tokens[name], QUICK, buckets=lambda: buckets, **options
        )
        return self.server.closing.enter_context(client)

    def open(self, data: bytes, name: str = "a", direct: bool = True) -> UploadSession:
        """Open an upload session, with presigned URLs if `direct`."""
        body = OpenUpload(digest=digest_of(data), size=len(data)).model_dump()
        path = paths.UPLOADS.format(run=self.fed.run.id)
        with self.server.http(self.fed.tokens[name]) as http:
            reply = http.post(path, json=body, params={"direct": direct})
        assert reply.is_success, reply.text
        return UploadSession.model_validate_json(reply.content)

    def finish(self, session: UploadSession, name: str = "a") -> httpx.Response:
        """Finish an upload."""
        path = paths.UPLOAD.format(run=self.fed.run.id, upload=session.upload)
        with self.server.http(self.fed.tokens[name]) as http:
            return http.put(path, params={"digest": session.digest})

    def objects(self, kind: str) -> dict[str, bytes]:
        """The bucket's objects below a prefix."""
        below = self.folder / kind
        return {
            str(path.relative_to(below)): path.read_bytes()
            for path in below.rglob("*")
            if path.is_file()
        }

    def stored(self, digest: str) -> bytes:
        """A blob's bytes in the bucket, stored whole or in parts."""
        name = digest.replace(":", "-")
        parts = sorted(item for item in self.objects("blobs").items() if name in item[0])
        return b"".join(data for _, data in parts)

    @property
    def start(self) -> str:
        """The digest of the run's initial adapter, which all members may read."""
        return str(self.fed.view().rounds[0].adapter)

    @property
    def passed(self) -> bytes:
        """All bytes sent to the bucket through the proxy."""
        return b"".join(bytes(one) for one in self.proxy.sent)


@pytest.fixture
def direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Direct]:
    """A run in round 1 whose adapters are uploaded in several parts."""
    monkeypatch.setattr(presigned, "PART_BYTES", PART)
    with ExitStack() as stack:
        s3 = stack.enter_context(serving_s3(tmp_path / "s3"))
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        port = int(s3.url.rsplit(":", 1)[-1])
        proxy = stack.enter_context(FaultProxy(port, keeps=True))
        places = {"blob_url": f"s3://{BUCKET}/prefix", "bucket_endpoint": proxy.url}
        settings = settings_for(tmp_path / "data").model_copy(update=places)
        server = stack.enter_context(serving(settings))
        stack.enter_context(server.closing)
        yield Direct(server, proxy, s3.folder / BUCKET / "prefix", begun(server, clients=3))


def adapter(direct: Direct, seed: int = 1) -> bytes:
    """A random adapter's encoded file."""
    return encode_adapter(direct.fed.run.model.layout, direct.fed.adapter(seed))


def put(url: str, data: bytes) -> int:
    """Upload to a URL; returns the status code."""
    return httpx.put(url, content=data).status_code


def test_an_adapter_goes_to_the_bucket_and_comes_from_it_and_the_token_does_not(
    direct: Direct, tmp_path: Path
) -> None:
    """Each part is in the ledger without its URL's signature, and no upload remains."""
    ledger, data = Ledger(tmp_path / "state"), adapter(direct)
    member = direct.member(direct.allowed, on_send=ledger.record)
    digest = member.put_blob(direct.fed.run.id, data)
    assert direct.objects("uploads") == {}
    assert direct.stored(digest_of(data)) == data
    assert member.blob(direct.fed.run.id, digest) == data
    before = direct.passed
    begin = member.blob(direct.fed.run.id, direct.start)
    assert (digest_of(begin), begin) == (direct.start, direct.stored(direct.start))
    assert direct.passed.startswith(before + b"GET /")
    assert direct.fed.tokens["a"].encode() not in direct.passed
    assert b"authorization" not in direct.passed.lower()
    recorded = list(entries(ledger_folder(tmp_path / "state")))
    parts = [one for one in recorded if one.kind == "adapter"]
    wanted = [digest_of(data[at : at + PART]) for at in range(0, len(data), PART)]
    assert [one.digest for one in parts] == wanted
    assert all(one.target.startswith(direct.allowed + "/uploads/") for one in parts)
    assert not any("X-Amz" in one.target for one in recorded)


def test_what_the_policy_does_not_name_is_sent_nothing(direct: Direct) -> None:
    """If the policy names another bucket or none, everything goes through the coordinator."""
    data = adapter(direct)
    near = (direct.allowed + "-2", f"{direct.proxy.url}/other", "http://127.0.0.1:1/bucket")
    for seed, names in enumerate([(), near], 1):
        data, member = adapter(direct, seed), direct.member(*names)
        digest = member.put_blob(direct.fed.run.id, data)
        assert member.blob(direct.fed.run.id, digest) == data
    assert direct.proxy.connections == 0


@pytest.mark.parametrize(
    ("url", "allows"),
    [
        ("https://s3.example.org/bucket/prefix/uploads/1?X-Amz-Signature=1", True),
        ("https://S3.EXAMPLE.org:443/bucket/prefix/uploads/1", True),
        ("http://s3.example.org/bucket/prefix/uploads/1", False),
        ("https://s3.example.org:444/bucket/prefix/uploads/1", False),
        ("https://s3.example.org/bucket/prefix", False),
        ("https://s3.example.org/bucket/prefix-2/uploads/1", False),
        ("https://s3.example.org/bucket/prefix/../../evil/1", False),
        ("https://s3.example.org/bucket/prefix/%2e%2E/%2e%2e/evil/1", False),
        ("https://s3.example.org/bucket/prefix/..%2f../evil/1", False),
        ("https://s3.example.org.evil.org/bucket/prefix/1", False),
        ("https://s3.example.org@evil.org/bucket/prefix/1", False),
        ("https://evil.org/https://s3.example.org/bucket/prefix/1", False),
        ("//s3.example.org/bucket/prefix/1", False),
        ("http://[", False),
    ],
)
def test_an_address_is_allowed_as_it_would_be_asked_for(url: str, allows: bool) -> None:
    """By scheme, host, port and whole path segments, after httpx has normalised the URL."""
    named = bucket.Bucket(lambda: ("https://s3.example.org/bucket/prefix/",), None, {})
    assert named.allows(url) is allows


def test_nothing_is_said_of_a_bucket_where_none_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """For example after a damaged download from the coordinator itself."""
    bucket.Bucket(tuple, None, {}).leave_alone("it returned other bytes than requested")
    assert caplog.records == []


def test_a_bucket_that_cannot_be_reached_is_left_alone(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member falls back on the coordinator, and tries the bucket again later."""
    services = direct.server.app.state.services
    monkeypatch.setattr(services.presigned, "sign", unreachable)
    member = direct.member("http://127.0.0.1:1")
    digest = member.put_blob(direct.fed.run.id, adapter(direct))
    assert not member.bucket.usable
    monkeypatch.setattr(bucket, "AWAY_SECONDS", 0.0)
    member.bucket.leave_alone("to be tried again")
    assert member.bucket.usable
    monkeypatch.undo()
    assert member.blob(direct.fed.run.id, digest) == adapter(direct)


def unreachable(method: str, keys: list[str]) -> list[str]:
    """Presigned URLs on a port where nothing listens."""
    return [f"http://127.0.0.1:1/{key}" for key in keys]


@contextmanager
def answering(headers: dict[str, str], body: bytes) -> Iterator[str]:
    """The URL of a server that answers every request like this, and stores nothing."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)  # ends with the connection, because no length is given

        do_PUT = do_GET = _answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("parts", [64, 2])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Type": "text/html", "ETag": '"1"'}, b"<title>Please log in</title>"),
        ({"Content-Type": "text/plain"}, b"Welcome!"),
        ({"ETag": '"1"'}, b""),
    ],
    ids=["a page", "no S3", "another bucket"],
)
def test_what_answers_in_the_buckets_place_is_left_alone(
    headers: dict[str, str],
    body: bytes,
    parts: int,
    direct: Direct,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The member uploads and downloads through the coordinator instead."""
    monkeypatch.setattr(presigned, "MAX_PARTS", parts)
    with answering(headers, body) as url:
        sign = lambda method, keys: [f"{url}/{key}" for key in keys]  # noqa: E731
        monkeypatch.setattr(services(direct).presigned, "sign", sign)
        member, data = direct.member(url), adapter(direct)
        assert direct.stored(member.put_blob(direct.fed.run.id, data)) == data
        assert not member.bucket.usable
        reading = direct.member(url)
        assert reading.blob(direct.fed.run.id, direct.start) == direct.stored(direct.start)
        assert not reading.bucket.usable


def test_a_url_is_good_for_its_own_object_and_method_alone(direct: Direct) -> None:
    """The bucket refuses it for another upload, for a blob, and for reading."""
    session, other = direct.open(adapter(direct, 1)), direct.open(adapter(direct, 2), "b")
    url, theirs = session.parts[0].url, other.parts[0].url
    assert put(url, b"mine") == 200
    blob = direct.start
    named = f"/blobs/{blob.split(':')[1][:2]}/{blob.replace(':', '-')}?"
    before = direct.objects("blobs")
    own = url.partition("/uploads/")[2].partition("?")[0]
    for place in (theirs.partition("/uploads/")[2].partition("?")[0], own[:-1] + "1"):
        assert put(url.replace(own, place), b"not mine") == 403
    assert put(url.replace(f"/uploads/{own}?", named), b"not mine") == 403
    assert httpx.get(url).status_code == 403
    read, _ = direct.server.app.state.services.presigned.blob(blob)
    assert httpx.get(read).status_code == 200
    assert put(read, b"not mine") == 403
    assert httpx.get(read.replace(named, f"/uploads/{own}?")).status_code == 403
    assert direct.objects("blobs") == before
    assert list(direct.objects("uploads").values()) == [b"mine"]


def test_a_member_is_redirected_to_what_it_may_see_alone(direct: Direct) -> None:
    """Another member's update stays unknown, as without a bucket."""
    digest = direct.member(direct.allowed).put_blob(direct.fed.run.id, adapter(direct))
    with pytest.raises(UnknownBlob):
        direct.member(direct.allowed, name="b").blob(direct.fed.run.id, digest)
    path = paths.BLOB.format(run=direct.fed.run.id, digest=direct.start)
    with direct.server.http(direct.fed.tokens["a"]) as http:
        assert http.get(path).content == direct.stored(direct.start)
        reply = http.get(path, params={"direct": True})
    assert reply.status_code == 307
    assert direct.fed.tokens["a"] not in reply.headers["Location"]
    assert reply.headers["Cache-Control"] == "private, no-store"


def test_a_url_used_again_changes_nothing_that_was_checked(direct: Direct) -> None:
    """Until it expires, other bytes may be uploaded: they are never used, and are swept later."""
    data = adapter(direct)
    session = direct.open(data)
    for part in session.parts:
        for _ in range(2):
            assert put(part.url, data[part.first : part.first + part.size]) == 200
    receipt = direct.finish(session)
    assert receipt.status_code == 201, receipt.text
    assert put(session.parts[0].url, b"\xff" * PART) == 200
    member = direct.member(direct.allowed)
    assert member.blob(direct.fed.run.id, session.digest) == data
    assert direct.finish(session).json() == receipt.json()
    assert list(direct.objects("uploads").values()) == [b"\xff" * PART]


def test_what_is_used_is_what_was_checked(direct: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if other bytes are uploaded during the check."""
    data, check = adapter(direct), upload_body.open_update
    session = direct.open(data)

    def overtaken(*arguments: Any) -> Any:
        checked = check(*arguments)
        for part in session.parts:
            assert put(part.url, b"\xff" * part.size) == 200
        return checked

    for part in session.parts:
        assert put(part.url, data[part.first : part.first + part.size]) == 200
    monkeypatch.setattr(upload_body, "open_update", overtaken)
    assert direct.finish(session).status_code == 201
    assert direct.member(direct.allowed).blob(direct.fed.run.id, session.digest) == data
    assert direct.stored(digest_of(data)) == data


def test_an_upload_is_checked_once_however_often_it_is_asked_for(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second request during the check is told to retry, and then gets the receipt."""
    data, check = adapter(direct), upload_body.open_update
    session, begun_, told = direct.open(data), threading.Event(), threading.Event()
    checks: list[int] = []

    def slow(*arguments: Any) -> Any:
        checks.append(len(checks))
        begun_.set()
        assert told.wait(60)
        return check(*arguments)

    for part in session.parts:
        assert put(part.url, data[part.first : part.first + part.size]) == 200
    monkeypatch.setattr(upload_body, "open_update", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(direct.finish, session)
        assert begun_.wait(60)
        try:
            impatient = direct.finish(session)
        finally:
            told.set()
        assert (impatient.status_code, impatient.headers["Retry-After"]) == (503, "2")
        assert first.result().status_code == 201
    assert direct.finish(session).status_code == 201
    assert len(checks) == 1


def test_other_bytes_are_no_adapter_and_no_blob(direct: Direct) -> None:
    """Bytes that do not match the announced digest are not stored."""
    data, before = adapter(direct), direct.objects("blobs")
    session = direct.open(data)
    for part in session.parts:
        assert put(part.url, b"\xff" * part.size) == 200
    refused = direct.finish(session)
    assert refused.status_code == 422, refused.text
    assert direct.objects("blobs") == before
    assert direct.objects("uploads") == {}
    assert direct.member(direct.allowed).put_blob(direct.fed.run.id, data) == session.digest


def test_more_bytes_than_were_announced_are_thrown_away(direct: Direct) -> None:
    """A presigned URL limits no size, so the next request or sweep deletes them."""
    data = adapter(direct)
    for look in (lambda: direct.open(data), lambda: direct.server.do(sweep(services(direct)))):
        session = direct.open(data)
        assert put(session.parts[0].url, data + b"more") == 200
        assert direct.finish(session).json()["code"] == "length_mismatch"
        look()
        assert direct.objects("uploads") == {}
        assert direct.open(data).offset == 0


def test_parts_of_an_upload_that_is_over_are_swept(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a deleted upload, and one uploaded afterwards."""
    session = direct.open(adapter(direct))
    assert put(session.parts[0].url, bytes(PART)) == 200
    with direct.server.http(direct.fed.tokens["a"]) as http:
        path = paths.UPLOAD.format(run=direct.fed.run.id, upload=session.upload)
        assert http.delete(path).status_code == 204
    assert direct.objects("uploads") == {}
    assert put(session.parts[1].url, bytes(PART)) == 200
    direct.server.do(sweep(services(direct)))
    assert len(direct.objects("uploads")) == 1  # it might belong to an upload in progress
    monkeypatch.setattr(maintenance, "ORPHAN_SECONDS", -5.0)
    direct.server.do(sweep(services(direct)))
    assert direct.objects("uploads") == {}


def services(direct: Direct) -> Any:
    """The coordinator's services."""
    return direct.server.app.state.services


def test_an_expired_url_is_refused_and_renewed(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member asks for new URLs, and does not resend parts that arrived."""
    data = adapter(direct)
    with monkeypatch.context() as short:
        short.setattr(presigned, "URL_SECONDS", 1.0)
        expired = direct.open(data)
        time.sleep(2.1)
    assert put(expired.parts[0].url, bytes(PART)) in (400, 403)
    assert not direct.objects("uploads")
    session = direct.open(data)
    assert session.upload == expired.upload
    assert put(session.parts[0].url, data[:PART]) == 200
    again = direct.open(data)
    assert (again.upload, again.offset) == (session.upload, PART)
    assert [part.first for part in again.parts] == [part.first for part in session.parts[1:]]
    monkeypatch.setattr(presigned, "URL_SECONDS", 2.0)  # ample time for one part
    waited: list[int] = []

    def slow(done: int, total: int) -> None:
        if done == 2 * PART and not waited:
            waited.append(done)
            time.sleep(3.1)  # the remaining URLs expire

    member = direct.member(direct.allowed)
    assert member.put_blob(direct.fed.run.id, data, slow) == digest_of(data)
    assert waited
    assert direct.passed.count(data[:PART]) == 1


def test_an_upload_goes_on_by_the_other_way(direct: Direct) -> None:
    """Parts in the bucket need not be resent through the coordinator, or the other way round."""
    data = adapter(direct)
    session = direct.open(data)
    assert put(session.parts[0].url, data[:PART]) == 200
    path = paths.UPLOAD.format(run=direct.fed.run.id, upload=session.upload)
    with direct.server.http(direct.fed.tokens["a"]) as http:
        head = {"Content-Range": f"{PART}-{PART + 499}"}
        assert http.patch(path, content=data[PART : PART + 500], headers=head).is_success
    again = direct.open(data)
    assert (again.offset, again.parts[0].first) == (PART + 500, PART + 500)
    direct.member(direct.allowed).put_blob(direct.fed.run.id, data)
    assert direct.stored(digest_of(data)) == data


def test_parts_come_some_at_a_time(direct: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member asks for the next ones."""
    monkeypatch.setattr(presigned, "MAX_PARTS", 2)
    data = adapter(direct)
    assert len(direct.open(data).parts) == 2 < len(data) / PART
    direct.member(direct.allowed).put_blob(direct.fed.run.id, data)
    assert direct.stored(digest_of(data)) == data


def test_bytes_that_the_bucket_has_spoilt_are_asked_of_the_coordinator(direct: Direct) -> None:
    """The coordinator never serves bytes that do not match their digest."""
    member, data = direct.member(direct.allowed), direct.stored(direct.start)
    name = direct.start.replace(":", "-")
    (file,) = (path for path in direct.folder.rglob("*") if path.name == name)
    file.write_bytes(bytes(len(data)))
    assert member.blob(direct.fed.run.id, direct.start) == data  # from the coordinator's own copy
    assert not member.bucket.usable


def test_adapters_travel_whole_to_and_from_a_bucket_through_cuts(direct: Direct) -> None:
    """With cuts at random bytes in both directions, nothing is lost, changed or left over."""
    run, member = direct.fed.run.id, direct.member(direct.allowed)
    for number in range(3):
        data, random = adapter(direct, number), Random(number)
        direct.proxy.plan = lambda _, random=random: cut(random)
        digest = member.put_blob(run, data)
        assert direct.stored(digest) == data
        assert digest_of(member.blob(run, direct.start)) == direct.start
        assert direct.objects("uploads") == {}
    assert direct.proxy.cuts > 4


def cut(random: Random) -> Fault:
    """A cut within the first few parts, of an upload or a download."""
    at, reset = random.randrange(4 * PART), random.random() < 0.5
    return Fault(cut_up=at, reset=reset) if random.random() < 0.5 else Fault(cut_down=at)


def test_a_blob_in_parts_is_read_withdrawn_and_swept_as_a_whole(direct: Direct) -> None:
    """By a replica without a local copy, and after another upload with other part boundaries."""
    blobs, data = services(direct).blobs, adapter(direct)
    digest = direct.member(direct.allowed).put_blob(direct.fed.run.id, data)
    assert len(direct.objects("blobs")) > len(data) / PART
    copy = blobs.path(digest)
    copy.unlink()
    assert blobs.read(digest) == data
    (listed,) = (blob for blob in blobs.blobs() if blob.name == digest)
    assert listed.size == len(data)
    session = direct.open(data, "b")
    for first, end in ((0, PART // 2), (PART // 2, len(data))):
        path = paths.UPLOAD.format(run=direct.fed.run.id, upload=session.upload)
        with direct.server.http(direct.fed.tokens["b"]) as http:
            head = {"Content-Range": f"{first}-{end - 1}"}
            assert http.patch(path, content=data[first:end], headers=head).is_success
    assert direct.finish(session, "b").status_code == 201
    copy.unlink()
    assert blobs.read(digest) == data
    blobs.remove_older(digest, listed.modified - 60)
    assert blobs.read(digest) == data
    blobs.remove_older(digest, listed.modified + 60)
    assert direct.stored(digest) == b""
    direct.member(direct.allowed, name="c").put_blob(direct.fed.run.id, data)
    (part, *_) = direct.folder.rglob(f"*{digest[7:]}.parts/*/*")
    part.write_bytes(bytes(part.stat().st_size))
    copy.unlink()
    with pytest.raises(DamagedBlob):
        blobs.read(digest)
    blobs.set_aside(digest)
    assert direct.stored(digest) == b""
    assert len(direct.objects("damaged")) > len(data) / PART


def test_a_copy_left_from_an_interrupted_check_is_not_used(direct: Direct) -> None:
    """Whatever bytes it has: the blob is read from the checked copy, and both are deleted."""
    blobs, data = services(direct).blobs, adapter(direct)
    digest = direct.member(direct.allowed).put_blob(direct.fed.run.id, data)
    parts = f"blobs/{digest[7:9]}/blake3-{digest[7:]}.parts"
    for name in ("0" * 16, "g" * 16):  # before and after the checked copy, in order of their names
        store = from_url(f"s3://{BUCKET}/prefix")
        obstore.put(store, f"{parts}/{name}/{0:016d}", b"\xff" * len(data))
    blobs.path(digest).unlink()
    assert blobs.read(digest) == data
    blobs.remove_older(digest, time.time() + 60)
    assert direct.stored(digest) == b""


@pytest.mark.parametrize("take", ["set aside", "removed"])
def test_parts_whose_first_is_gone_are_taken_away_too(direct: Direct, take: str) -> None:
    """Another replica may have been interrupted, or may still be deleting them."""
    blobs, data = services(direct).blobs, adapter(direct)
    digest = direct.member(direct.allowed).put_blob(direct.fed.run.id, data)
    blobs.path(digest).unlink()
    first, *others = sorted(key for key in direct.objects("blobs") if f"{digest[7:]}.parts/" in key)
    obstore.delete(from_url(f"s3://{BUCKET}/prefix"), f"blobs/{first}")
    assert others
    if take == "set aside":
        assert blobs.set_aside(digest)
    else:
        blobs.remove_older(digest, time.time() + 60)
    assert direct.stored(digest) == b""
