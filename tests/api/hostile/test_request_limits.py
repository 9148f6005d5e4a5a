"""Limits of requests: their rate, size and content type."""

import time
from pathlib import Path

import httpx
import pytest

from pubswap_protocol import paths
from pubswap_protocol.messages import CreateInvite, Progress
from pubswap_server.http.problems import SAFETY_HEADERS
from pubswap_server.http.routes import runs as run_routes
from pubswap_server.http.routes import uploads as upload_routes
from pubswap_server.rate_limits import Rate
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for

PROGRESS = Progress(round=1, step=1, steps=2).model_dump(exclude_none=True)


def opened(http: httpx.Client, fed: Federation) -> str:
    """The path of a new upload of 20 bytes."""
    body = {"digest": "blake3:" + "0" * 64, "size": 20}
    reply = http.post(paths.UPLOADS.format(run=fed.run.id), json=body).json()
    return paths.UPLOAD.format(run=fed.run.id, upload=reply["upload"])


def test_a_member_that_asks_too_often_is_told_when_to_come_again(tmp_path: Path) -> None:
    """429 with Retry-After; its peer, the operator and a later request are not affected."""
    settings = settings_for(tmp_path).model_copy(update={"member_requests_per_second": 5})
    with serving(settings) as server, server.closing:
        fed = begun(server)
        with server.http(fed.tokens["a"]) as http, server.http(fed.tokens["b"]) as peer:
            path = paths.HEARTBEAT.format(run=fed.run.id)
            began, replies = time.monotonic(), []
            while len(replies) < 30 or replies[-1].status_code == 204:
                replies.append(http.post(path, json=PROGRESS))
            refused = [reply for reply in replies if reply.status_code != 204]
            taken, most = len(replies) - len(refused), 10 + 5 * (time.monotonic() - began)
            assert 9 <= taken <= most  # its hello was one of the first ten
            assert {reply.status_code for reply in refused} == {429}
            assert refused[0].json()["code"] == "too_many_requests"
            seconds = int(refused[0].headers["Retry-After"])
            assert peer.post(path, json=PROGRESS).status_code == 204
            assert fed.view().round == 1
            time.sleep(seconds)
            assert http.post(path, json=PROGRESS).status_code == 204


def test_chunks_of_no_upload_count_and_those_of_an_upload_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large adapter needs many chunks, but unknown uploads must not cost unlimited queries."""
    monkeypatch.setattr(upload_routes, "SMALL_CHUNK_BYTES", 1)
    with serving(settings_for(tmp_path)) as server, server.closing:
        server.app.state.services.limits.members.rate = Rate(0.001, 6)  # including its hello
        fed = begun(server)
        with server.http(fed.tokens["a"]) as http:
            path = opened(http, fed)
            for place in range(20):
                headers = {"Content-Range": f"{place}-{place}"}
                assert http.patch(path, content=b"x", headers=headers).status_code == 202
            path = paths.UPLOAD.format(run=fed.run.id, upload="0" * 32)
            replies = [
                http.patch(path, content=b"x", headers={"Content-Range": "0-0"}) for _ in range(8)
            ]
        codes = [reply.json()["code"] for reply in replies]
        assert codes == ["unknown_upload"] * 4 + ["too_many_requests"] * 4


def test_tiny_chunks_count_but_the_last(tmp_path: Path) -> None:
    """Each costs the coordinator as much as another request, and moves next to nothing."""
    with serving(settings_for(tmp_path)) as server, server.closing:
        server.app.state.services.limits.members.rate = Rate(0.001, 6)  # including its hello
        fed = begun(server)
        with server.http(fed.tokens["a"]) as http:
            path = opened(http, fed)
            statuses = []
            for first, last in ((0, 0), (1, 1), (2, 2), (3, 19), (0, 0), (0, 0)):
                headers = {"Content-Range": f"{first}-{last}"}
                reply = http.patch(path, content=b"x" * (last - first + 1), headers=headers)
                statuses.append(reply.status_code)
        assert statuses == [202, 202, 202, 202, 416, 429]


def test_a_page_of_rounds_costs_its_reader_what_it_costs_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member pays for the numbers on it; the operator does not, and its peer is not affected."""
    monkeypatch.setattr(run_routes, "NUMBERS_A_REQUEST", 0.1)
    with serving(settings_for(tmp_path)) as server, server.closing:
        fed = begun(server)
        server.app.state.services.limits.members.rate = Rate(0.001, 20)
        path = paths.ROUNDS.format(run=fed.run.id)
        with server.http(fed.tokens["a"]) as http, server.http() as operator:
            assert [http.get(path).status_code for _ in range(2)] == [200, 429]
            assert {operator.get(path).status_code for _ in range(5)} == {200}
        assert fed.members["b"].task(fed.run.id, 0).kind == "train"


def test_an_address_that_guesses_is_refused_and_its_members_are_not(tmp_path: Path) -> None:
    """Bad tokens, missing tokens and bad invites all count; good tokens and invites still work."""
    with serving(settings_for(tmp_path)) as server, server.closing:
        server.app.state.services.limits.failures.rate = Rate(0.001, 6)
        fed = begun(server)
        path = paths.TASK.format(run=fed.run.id)
        fed.members["a"].task(fed.run.id, 0)
        with server.http(None) as http:
            for number in range(2):
                bearer = {"Authorization": f"Bearer guess-{number}"}
                assert http.get(path, headers=bearer).status_code == 401
                assert http.get(path).status_code == 401
                assert http.post(paths.ENROLL, json={"invite": "guess"}).status_code == 401
            bearer = {"Authorization": "Bearer guess"}
            assert http.get(path, headers=bearer).status_code == 429
            reply = http.post(paths.ENROLL, json={"invite": "guess"})
            assert (reply.status_code, reply.json()["code"]) == (429, "too_many_requests")
            assert int(reply.headers["Retry-After"]) > 1
        assert fed.members["a"].task(fed.run.id, 0).kind == "train"
        assert fed.view().round == 1
        invite = fed.operator.invite(fed.run.id, CreateInvite(name="c")).invite
        key = {paths.IDEMPOTENCY_HEADER: "k" * 22}
        with server.http(None) as http:
            enrolled = [
                http.post(paths.ENROLL, json={"invite": invite}, headers=key) for _ in range(2)
            ]
            assert [reply.status_code for reply in enrolled] == [201, 201]  # an answer may be lost
        assert server.client(enrolled[0].json()["token"]).run(fed.run.id).round == 1


def test_used_invites_count_as_guesses(tmp_path: Path) -> None:
    """Each attempt is a transaction, so nobody may repeat one without limit."""
    with serving(settings_for(tmp_path)) as server, server.closing:
        fed = begun(server)
        invite = fed.operator.invite(fed.run.id, CreateInvite(name="c")).invite
        fed.operator.enroll(invite)
        server.app.state.services.limits.failures.rate = Rate(0.001, 3)
        with server.http(None) as http:
            body = {"invite": invite}
            statuses = [http.post(paths.ENROLL, json=body).status_code for _ in range(5)]
        assert statuses == [410] * 3 + [429] * 2


@pytest.mark.parametrize("standing", ["suspended", "revoked"])
def test_a_member_that_takes_part_no_more_asks_no_more_often_than_a_stranger(
    tmp_path: Path, standing: str
) -> None:
    """Although its token was valid before, its requests count as failures."""
    with serving(settings_for(tmp_path)) as server, server.closing:
        fed = begun(server)
        path = paths.TASK.format(run=fed.run.id)
        for name in "ab":
            fed.members[name].task(fed.run.id, 0)
        if standing == "suspended":
            fed.operator.decide(fed.run.id, "b", paths.RUN_MEMBER_SUSPEND)
        else:
            fed.operator.revoke(fed.run.id, "b")
        server.app.state.services.limits.failures.rate = Rate(0.001, 6)
        with server.http(fed.tokens["b"]) as http:
            statuses = [http.get(path).status_code for _ in range(9)]
        assert statuses == [403 if standing == "suspended" else 401] * 6 + [429] * 3
        assert fed.members["a"].task(fed.run.id, 0).kind == "train"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity"])
def test_an_encoded_body_is_refused(server: Server, encoding: str) -> None:
    """A compressed body could be a decompression bomb, so no route accepts one."""
    with server.http() as http:
        for path in (paths.RUNS, paths.ENROLL, paths.RUN_SET.format(run="x", kind="public")):
            reply = http.post(path, content=b"x", headers={"Content-Encoding": encoding})
            assert (reply.status_code, reply.json()["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize("kind", ["text/plain", paths.TENSORS_TYPE, "multipart/form-data"])
def test_json_under_another_type_is_refused_with_the_right_one(server: Server, kind: str) -> None:
    """The 415 error names application/json."""
    with server.http() as http:
        reply = http.post(paths.ENROLL, content=b'{"invite": "x"}', headers={"Content-Type": kind})
    assert (reply.status_code, reply.json()["code"]) == (415, "unsupported_type")
    assert "application/json" in reply.json()["detail"]


@pytest.mark.parametrize("kind", ["application/json", "text/plain", paths.TENSORS_TYPE])
def test_a_json_route_takes_no_huge_body_under_any_type(server: Server, kind: str) -> None:
    """The route limits how much is held in memory, whatever the client's Content-Type."""
    fed = begun(server)
    with server.http(fed.tokens["a"]) as http:
        path = paths.HEARTBEAT.format(run=fed.run.id)
        headers = {"Content-Type": kind, "Content-Length": str(2 << 20)}
        reply = http.post(path, content=b" " * (2 << 20), headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (413, "too_large")


def test_every_reply_carries_the_headers_that_keep_browsers_safe(server: Server) -> None:
    """On success, on refusals and on unknown routes."""
    with server.http() as http:
        replies = [
            http.get(paths.HEALTH),
            http.get(paths.RUNS),
            http.get("/nowhere"),
            http.get("/openapi.json"),
            http.post(paths.RUNS, json={}),
            http.get(paths.RUNS, headers={paths.PROTOCOL_HEADER: "99"}),
            http.get(paths.RUNS, headers={"Authorization": "Bearer no"}),
        ]
    for reply in replies:
        assert {name: reply.headers.get(name) for name in SAFETY_HEADERS} == SAFETY_HEADERS
        assert reply.headers[paths.REQUEST_ID_HEADER]
