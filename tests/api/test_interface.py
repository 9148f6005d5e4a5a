"""The HTTP API in general: downloads, health, metrics, and the OpenAPI document."""

import json
from pathlib import Path

from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import CreateRun
from support.coordinator.coordinator import OPERATOR_TOKEN, Server, api_document, begun, create

SNAPSHOT = Path(__file__).parent / "openapi.json"


def test_downloads_take_ranges_and_know_what_has_not_changed(server: Server) -> None:
    """206 for a range, 304 without a body, and 416 for an impossible range."""
    fed = begun(server)
    digest = fed.members["a"].task(fed.run.id, 0).adapter or ""
    path = paths.BLOB.format(run=fed.run.id, digest=digest)
    with server.http(fed.tokens["a"]) as http:
        whole = http.get(path)
        assert digest_of(whole.content) == digest
        assert whole.headers["ETag"] == f'"{digest}"'
        part = http.get(path, headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, whole.content[10:20])
        rest = http.get(path, headers={"Range": f"bytes={len(whole.content) - 5}-"})
        assert rest.content == whole.content[-5:]
        same = http.get(path, headers={"If-None-Match": f'"{digest}"'})
        assert (same.status_code, same.content) == (304, b"")
        assert same.headers["X-Content-Type-Options"] == "nosniff"
        for outside in ("bytes=999999999-", "bytes=-0"):
            refused = http.get(path, headers={"Range": outside})
            assert refused.status_code == 416
            assert refused.headers["Content-Range"] == f"bytes */{len(whole.content)}"
        assert http.get(path, headers={"Range": "bytes=-5"}).content == whole.content[-5:]


def test_a_deleted_run_created_again_with_its_key_has_its_new_settings(server: Server) -> None:
    """The key gives it the same id, but nothing is left of the first one."""
    run, seen = create(server).run, []
    with server.http(OPERATOR_TOKEN) as http:
        for rounds in (3, 5):
            settings = run.settings.model_copy(update={"rounds": rounds})
            body = CreateRun(name="again", settings=settings, model=run.model)
            key = {paths.IDEMPOTENCY_HEADER: "the-same-key-both-times"}
            view = http.post(paths.RUNS, json=body.model_dump(mode="json"), headers=key).json()
            seen.append((view["id"], view["settings"]["rounds"]))
            assert http.post(paths.RUN_CANCEL.format(run=view["id"])).status_code == 200
            assert http.delete(paths.RUN.format(run=view["id"])).status_code == 204
    assert seen == [(seen[0][0], 3), (seen[0][0], 5)]


def test_health_readiness_and_metrics_are_public(server: Server) -> None:
    """Probes need no token, and metrics are labelled by route template, not by path."""
    begun(server)
    with server.http(None) as http:
        assert http.get(paths.HEALTH).json() == {"status": "ok"}
        assert http.get(paths.READY).json() == {"status": "ready"}
        assert http.get(paths.VERSION).json()["protocol"] == paths.PROTOCOL_VERSION
        http.get("/v1/runs/never-seen-before")
        text = http.get(paths.METRICS).text
    assert 'route="/v1/runs/{run}"' in text
    assert "never-seen-before" not in text
    assert 'pubswap_runs{state="training"}' in text


def test_a_request_id_is_given_back_or_made(server: Server) -> None:
    """A well-formed id is kept, any other is replaced."""
    with server.http(None) as http:
        given = http.get(paths.HEALTH, headers={paths.REQUEST_ID_HEADER: "abc-1"})
        made = http.get(paths.HEALTH, headers={paths.REQUEST_ID_HEADER: "a b\t{}"})
    assert given.headers[paths.REQUEST_ID_HEADER] == "abc-1"
    assert len(made.headers[paths.REQUEST_ID_HEADER]) == 32


def test_the_openapi_document_is_the_one_agreed_on() -> None:
    """Any change of the API shows as a change of the snapshot.

    After an intended change, delete tests/api/openapi.json, run this test and commit the file.
    """
    document = api_document()
    if not SNAPSHOT.exists():
        SNAPSHOT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    assert json.loads(SNAPSHOT.read_text()) == json.loads(json.dumps(document))


def test_every_operation_is_named_and_described() -> None:
    """Operation ids are unique, and each operation has a summary and a description."""
    operations = [
        operation for path in api_document()["paths"].values() for operation in path.values()
    ]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names) >= 25
    assert all(operation["summary"] and operation["description"] for operation in operations)
