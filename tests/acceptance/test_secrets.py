"""Tokens and invites are found only where they belong: with their holders."""

import base64
import json
from pathlib import Path

import httpx

from pubswap_protocol import paths
from pubswap_protocol.messages import CreateInvite, Progress
from support.coordinator.processes import create_run, serve
from support.forked import ForkedProcesses

CANARY = "canary-3f9c1e"
LOUD = {"PUBSWAP_LOG_LEVEL": "debug", "PUBSWAP_LOG_FORMAT": "json"}


def test_no_secret_is_in_the_database_the_blobs_or_the_log(tmp_path: Path) -> None:
    """At debug level, after members joined, failed, sent nonsense and were refused."""
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path, env=LOUD)
        with coordinator.api as api:
            run = create_run(coordinator, {"clients": 1, "rounds": 1})
            invites = [api.invite(run.id, CreateInvite(name=name)).invite for name in "ab"]
            membership = api.enroll(invites[0])
            operator = (tmp_path / "c" / "operator-token").read_text().strip()
            with httpx.Client(base_url=api.url) as http:
                bearer = {"Authorization": f"Bearer {membership.token}"}
                beat = paths.HEARTBEAT.format(run=run.id)
                body = Progress(round=1, step=1, steps=2).model_dump(exclude_none=True)
                assert http.post(beat, json=body, headers=bearer).status_code == 204
                assert http.post(beat, json={"x": CANARY}, headers=bearer).status_code == 422
                assert http.get(f"/v1/runs?{CANARY}", headers=bearer).status_code == 403
                wrong = {"Authorization": f"Bearer {CANARY}"}
                assert http.get(paths.RUNS, headers=wrong).status_code == 401
                assert http.post(paths.ENROLL, json={"invite": CANARY}).status_code == 401
                assert http.post(paths.ENROLL, json={"invite": invites[0]}).status_code == 410
    secrets = [operator, membership.token, *invites, CANARY]
    files = [file for file in (tmp_path / "c").rglob("*") if file.is_file()]
    log = tmp_path / "logs" / "coordinator.log"
    assert any(file.name == "pubswap.sqlite" for file in files)
    assert len([file for file in files if "blobs" in file.parts]) >= 3
    for file in [*files, log]:
        if file.name == "operator-token":
            continue
        data = file.read_bytes()
        for secret in secrets:
            for spelling in (secret.encode(), base64.b64encode(secret.encode())):
                assert spelling not in data, (file, secret)


def test_log_lines_name_request_run_and_member(tmp_path: Path) -> None:
    """As JSON, one line for each request, with the id that the reply carried."""
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path, env=LOUD)
        with coordinator.api as api:
            run = create_run(coordinator, {"clients": 1, "rounds": 1})
            membership = api.enroll(api.invite(run.id, CreateInvite(name="a")).invite)
            with httpx.Client(base_url=api.url) as http:
                reply = http.get(
                    paths.RUN.format(run=run.id),
                    headers={"Authorization": f"Bearer {membership.token}"},
                )
    lines = (tmp_path / "logs" / "coordinator.log").read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    wanted = reply.headers[paths.REQUEST_ID_HEADER]
    (entry,) = [e for e in entries if e.get("request_id") == wanted and e["event"] == "request"]
    assert (entry["run"], entry["member"]) == (run.id, "a")
    assert (entry["route"], entry["status"], entry["method"]) == (paths.RUN, 200, "GET")
