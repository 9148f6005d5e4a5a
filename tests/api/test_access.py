"""Authorisation: every route, requested by every kind of caller, against one table."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from pubswap_client.coordinator.tls import PUBLIC
from pubswap_client.organisation.enrolling import enroll
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import UnknownBlob, UnknownUpload
from pubswap_protocol.messages import CreateInvite, Role
from pubswap_protocol.model import fingerprint
from pubswap_protocol.tensors.adapter import encode_adapter
from support.coordinator.coordinator import OPERATOR_TOKEN, Federation, Server, begun

ANYBODY = frozenset(
    {
        "no token",
        "garbage",
        "another run's client",
        "another run's evaluator",
        "client",
        "evaluator",
        "revoked",
        "suspended",
        "operator",
    }
)
OPERATOR = frozenset({"operator"})
CLIENT = frozenset({"client"})
EVALUATOR = frozenset({"evaluator"})
MEMBER = CLIENT | EVALUATOR

# A new route needs a line here that says who may use it.
ALLOWED = {
    "health": ANYBODY,
    "ready": ANYBODY,
    "metrics": ANYBODY,
    "version": ANYBODY,
    "enroll": ANYBODY,
    "create_run": OPERATOR,
    "list_runs": OPERATOR,
    "show_run": OPERATOR | MEMBER,
    "list_rounds": OPERATOR | MEMBER,
    "list_steps": OPERATOR,
    "put_tokenizer": OPERATOR,
    "put_initial_adapter": OPERATOR,
    "put_set": OPERATOR,
    "get_set": OPERATOR | MEMBER,
    "open_run": OPERATOR,
    "change_run": OPERATOR,
    "start_run": OPERATOR,
    "pause_run": OPERATOR,
    "resume_run": OPERATOR,
    "cancel_run": OPERATOR,
    "archive_run": OPERATOR,
    "delete_run": OPERATOR,
    "roll_back_run": OPERATOR,
    "exclude_update": OPERATOR,
    "list_events": OPERATOR,
    "get_adapter": OPERATOR | MEMBER,
    "create_invite": OPERATOR,
    "list_members": OPERATOR,
    "revoke_member": OPERATOR,
    "suspend_member": OPERATOR,
    "reinstate_member": OPERATOR,
    "reissue_member": OPERATOR,
    "create_viewer": OPERATOR,
    "list_viewers": OPERATOR,
    "delete_viewer": OPERATOR,
    "hello": MEMBER,
    "heartbeat": MEMBER,
    "say_away": CLIENT,
    "create_link": MEMBER,
    "get_task": MEMBER,
    "open_upload": CLIENT,
    "show_upload": CLIENT,
    "send_chunk": CLIENT,
    "finish_upload": CLIENT,
    "give_up_upload": CLIENT,
    "get_blob": MEMBER,
    "submit_update": CLIENT,
    "submit_evaluation": EVALUATOR,
    "get_evaluation": OPERATOR,
    "get_public_step": CLIENT,
    "submit_responses": CLIENT,
    "get_exchanged": CLIENT,
}

DIGEST = digest_of(b"somebody's")
MODEL_DIGEST = fingerprint(b"somebody's")
BODIES: dict[str, dict[str, Any]] = {
    "create_run": {"name": "x"},
    "change_run": {"clients": 2},
    "create_invite": {"name": "somebody"},
    "create_viewer": {"name": "board"},
    "roll_back_run": {"to": 0},
    "reissue_member": {},
    "hello": {
        "config_digest": MODEL_DIGEST,
        "tokenizer_digest": MODEL_DIGEST,
        "weights_digest": MODEL_DIGEST,
        "verifier_version": "x",
    },
    "heartbeat": {"round": 1, "step": 1, "steps": 2},
    "say_away": {"code": "not_approved", "detail": "Until tomorrow."},
    "open_upload": {"digest": DIGEST, "size": 1000},
    "submit_update": {"adapter": DIGEST, "metrics": {"examples": 1, "steps": 1}},
    "submit_evaluation": {"pass_at_1": 0.5, "by_topic": {}, "problems": 1, "seconds": 1},
}
REFUSED = {
    "no token": {(401, "unauthenticated")},
    "garbage": {(401, "unauthenticated")},
    "revoked": {(401, "unauthenticated")},
    "suspended": {(403, "suspended")},
    "another run's client": {(403, "forbidden"), (404, "unknown_run")},
    "another run's evaluator": {(403, "forbidden"), (404, "unknown_run")},
    "client": {(403, "forbidden")},
    "evaluator": {(403, "forbidden")},
    "operator": {(403, "forbidden")},
}


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    name: str
    method: str
    path: str
    streams: bool


def operations(app: Any) -> list[Operation]:
    """All operations of the OpenAPI document."""
    return [
        Operation(
            name=described["operationId"],
            method=method.upper(),
            path=path,
            streams="application/json"
            not in described.get("requestBody", {}).get("content", {"application/json": {}}),
        )
        for path, methods in app.openapi()["paths"].items()
        for method, described in methods.items()
    ]


def test_the_table_names_every_route_and_the_document_too(server: Server) -> None:
    """Fails for a route that is missing from the table or from the OpenAPI document."""
    assert {operation.name for operation in operations(server.app)} == set(ALLOWED)

    def walk(routes: list[Any]) -> list[Any]:
        return [r for route in routes for r in (route, *walk(getattr(route, "routes", None) or []))]

    unseen = [
        r for r in walk(server.app.routes) if isinstance(r, APIRoute) and not r.include_in_schema
    ]
    assert unseen == []


def cast(server: Server) -> tuple[Federation, dict[str, str | None]]:
    """A run, and a token for each kind of caller."""
    mine, other = begun(server, clients=3), begun(server)
    mine.operator.revoke(mine.run.id, "b")
    mine.operator.decide(mine.run.id, "c", paths.RUN_MEMBER_SUSPEND)
    return mine, {
        "no token": None,
        "garbage": "garbage",
        "another run's client": other.tokens["a"],
        "another run's evaluator": other.tokens["judge"],
        "client": mine.tokens["a"],
        "evaluator": mine.tokens["judge"],
        "revoked": mine.tokens["b"],
        "suspended": mine.tokens["c"],
        "operator": OPERATOR_TOKEN,
    }


def ask(
    server: Server,
    fed: Federation,
    operation: Operation,
    adapter: str,
    upload: str,
    token: str | None,
) -> httpx.Response:
    """Make a request that is valid except, perhaps, for its authorisation."""
    path = operation.path.format(
        run=fed.run.id,
        member="nobody",
        viewer="nobody",
        kind="public",
        which="final",
        digest=adapter,
        upload=upload,
        round=1,
        public_step=1,
    )
    content: dict[str, Any] = {}
    if operation.name == "enroll":
        invite = fed.operator.invite(fed.run.id, CreateInvite(name=f"m-{secrets.token_hex(4)}"))
        content["json"] = {"invite": invite.invite}
    elif operation.name in BODIES:
        content["json"] = BODIES[operation.name]
    elif operation.streams:
        content["content"] = b"x"
        content["headers"] = {"Content-Range": "0-0", "Content-Type": paths.TENSORS_TYPE}
    query = {"digest": DIGEST} if operation.name == "finish_upload" else {}
    with server.http(token) as http:
        return http.request(operation.method, path, params=query, **content)


def code_of(reply: httpx.Response) -> str:
    """An error response's code, or an empty string."""
    kind = reply.headers.get("content-type", "")
    return str(reply.json()["code"]) if kind == paths.PROBLEM_TYPE else ""


@pytest.fixture(scope="module")
def scene(shared_server: Server) -> Iterator[tuple[Federation, dict[str, str | None]]]:
    """One run for all routes, except those that change its state for the others."""
    server = Server(shared_server.url, shared_server.app, shared_server.data_dir)
    with server.closing:
        yield cast(server)


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_route_serves_those_in_the_table_and_nobody_else(
    server: Server, scene: tuple[Federation, dict[str, str | None]], name: str
) -> None:
    """Everybody else gets 401, 403, or 404 for a run that is not theirs, and learns no more."""
    (operation,) = [found for found in operations(server.app) if found.name == name]
    fed, tokens = cast(server) if name in ("cancel_run", "hello") else scene
    opened = open_upload(server, fed, tokens["client"])
    adapter = fed.view().rounds[0].adapter or ""
    for actor in sorted(ANYBODY):
        reply = ask(server, fed, operation, adapter, opened, tokens[actor])
        got = (reply.status_code, code_of(reply))
        if actor in ALLOWED[name]:
            assert got[0] not in (401, 403), (actor, got)
            assert got[1] != "unknown_run", (actor, got)
        else:
            assert got in REFUSED[actor], (actor, got)
        assert reply.status_code < 500


def open_upload(server: Server, fed: Federation, token: str | None) -> str:
    """Open an upload session for this token; returns its id."""
    with server.http(token) as http:
        body = {"digest": DIGEST, "size": 1000}
        reply = http.post(paths.UPLOADS.format(run=fed.run.id), json=body)
    assert reply.status_code == 201
    return str(reply.json()["upload"])


def test_what_one_run_or_member_has_sent_is_not_another_s(server: Server) -> None:
    """A known digest or upload id gives no access, neither to a peer nor from another run."""
    mine, other = begun(server), begun(server)
    data = encode_adapter(mine.run.model.layout, mine.adapter(77))
    mine.submit("a", 1, mine.adapter(77))
    upload = open_upload(server, mine, mine.tokens["b"])
    digest = digest_of(data)
    assert mine.members["a"].blob(mine.run.id, digest) == data
    thieves: list[tuple[Federation, str]] = [(mine, "b"), (mine, "judge"), (other, "a")]
    for fed, name in thieves:
        with server.http(fed.tokens[name]) as http:
            path = paths.BLOB.format(run=fed.run.id, digest=digest)
            assert http.get(path).status_code == UnknownBlob.status
    for fed, name in [(mine, "a"), (other, "a")]:
        path = paths.UPLOAD.format(run=fed.run.id, upload=upload)
        with server.http(fed.tokens[name]) as http:
            replies = [
                http.get(path),
                http.patch(path, content=b"x", headers={"Content-Range": "0-0"}),
                http.put(path, params={"digest": DIGEST}),
                http.delete(path),
            ]
        assert [reply.json()["code"] for reply in replies] == [UnknownUpload.code] * 4


def test_a_member_finds_its_run_by_id_only(server: Server) -> None:
    """Only the operator may use names: guessing one tells a member nothing."""
    fed = begun(server)
    with server.http(fed.tokens["a"]) as http:
        for name in (fed.run.name, "no-such-run"):
            reply = http.get(paths.RUN.format(run=name))
            assert (reply.status_code, reply.json()["code"]) == (404, "unknown_run")


def test_a_token_and_an_invite_are_taken_with_the_spaces_of_their_pasting(
    server: Server, tmp_path: Path
) -> None:
    """A header value cannot end with whitespace, so no request could be sent with it."""
    fed = begun(server)
    pasted = server.client(f" {fed.tokens['a']}\n")
    assert pasted.run(fed.run.id).id == fed.run.id
    invite = fed.operator.invite(fed.run.id, CreateInvite(name="pasted")).invite
    assert enroll(server.url, f" {invite} ", tmp_path, PUBLIC).membership.name == "pasted"


def test_an_evaluator_s_invite_makes_no_client(server: Server) -> None:
    """The invite decides the role."""
    fed = begun(server)
    fed.enroll("second-judge", Role.EVALUATOR)
    with server.http(fed.tokens["second-judge"]) as http:
        reply = http.post(paths.UPLOADS.format(run=fed.run.id), json=BODIES["open_upload"])
    assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")
