"""Resumable uploads over real sockets: sessions, quotas, expiry, damage."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import DamagedBlob, NoSpace, RoundClosed
from pubswap_protocol.messages import SubmitUpdate, TaskKind, UpdateMetrics
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_server.clock import now
from pubswap_server.conductor import maintenance
from pubswap_server.conductor.maintenance import heal, sweep
from pubswap_server.database.tables import UploadRow
from pubswap_server.runs.uploads import ADAPTERS_A_ROUND, SESSIONS, check_room
from pubswap_server.storage.spool import Writer
from pubswap_server.storage.store import file_name, folder_name
from support.coordinator.coordinator import Federation, Server, begun, serving, settings_for
from support.eventually import until


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts a separate coordinator with changed settings."""
    with ExitStack() as stack:

        def start(**changed: Any) -> Server:
            settings = settings_for(tmp_path / "own").model_copy(update=changed)
            server = stack.enter_context(serving(settings))
            stack.enter_context(server.closing)
            return server

        yield start


def adapter_bytes(fed: Federation, seed: int) -> bytes:
    """A random adapter's encoded file."""
    return encode_adapter(fed.run.model.layout, fed.adapter(seed))


def open_upload(http: httpx.Client, fed: Federation, data: bytes) -> dict[str, Any]:
    """Open an upload session for a blob."""
    body = {"digest": digest_of(data), "size": len(data)}
    reply = http.post(paths.UPLOADS.format(run=fed.run.id), json=body)
    assert reply.is_success, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def place(fed: Federation, session: dict[str, Any]) -> str:
    """An upload's path."""
    return paths.UPLOAD.format(run=fed.run.id, upload=session["upload"])


def send(http: httpx.Client, path: str, data: bytes, first: int, end: int) -> httpx.Response:
    """Send bytes `first` to `end`."""
    headers = {"Content-Range": f"{first}-{end - 1}"}
    return http.patch(path, content=data[first:end], headers=headers)


def code(reply: httpx.Response) -> str:
    """The error code of a response."""
    return str(reply.json()["code"])


def test_an_upload_goes_on_after_any_cut_and_ends_in_one_receipt(server: Server) -> None:
    """The offset counts received bytes, reopening finds the session, finishing is idempotent."""
    fed = begun(server)
    data = adapter_bytes(fed, 1)
    with server.http(fed.tokens["a"]) as http:
        session = open_upload(http, fed, data)
        path = place(fed, session)
        assert session["offset"] == 0
        ahead = send(http, path, data, 1, 1000)
        assert (ahead.status_code, ahead.headers.get("Range")) == (416, None)
        first = send(http, path, data, 0, 1000)
        assert (first.status_code, first.headers["Range"]) == (202, "0-999")
        wrong = send(http, path, data, 0, 1000)
        assert (wrong.status_code, wrong.headers["Range"]) == (416, "0-999")
        early = http.put(path, params={"digest": digest_of(data)})
        assert code(early) == "length_mismatch"
        again = open_upload(http, fed, data)
        assert (again["upload"], again["offset"]) == (session["upload"], 1000)
        assert send(http, path, data, 1000, len(data)).status_code == 202
        receipts = [http.put(path, params={"digest": digest_of(data)}) for _ in range(2)]
        assert [reply.status_code for reply in receipts] == [201, 201]
        assert receipts[0].json() == receipts[1].json()
        stored = open_upload(http, fed, data)
        assert (stored["stored"], stored["upload"]) == (True, None)
        blob = paths.BLOB.format(run=fed.run.id, digest=digest_of(data))
        assert http.get(blob).content == data


def test_what_arrived_before_a_connection_broke_is_kept(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a request cut off mid-body count as far as they arrived."""
    write, arrived = Writer.write, threading.Event()

    async def watched(writer: Writer, piece: bytes) -> None:
        await write(writer, piece)
        if writer.size == 3000:
            arrived.set()

    monkeypatch.setattr(Writer, "write", watched)
    fed = begun(server)
    data = adapter_bytes(fed, 1)
    host, port = server.url.removeprefix("http://").split(":")
    with server.http(fed.tokens["a"]) as http:
        path = place(fed, open_upload(http, fed, data))
        head = (
            f"PATCH {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {fed.tokens['a']}\r\n"
            f"Content-Range: 0-{len(data) - 1}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(head.encode() + data[:3000])
            # Bytes that uvicorn has not passed on before the connection ends are lost.
            assert arrived.wait(60)
        until(lambda: http.get(path).json()["offset"] == 3000)
        # The bytes are there before the request that brought them has ended.
        until(lambda: send(http, path, data, 3000, len(data)).status_code == 202)
        assert http.put(path, params={"digest": digest_of(data)}).status_code == 201


def test_only_its_own_member_sees_an_upload(server: Server) -> None:
    """Neither a peer nor another run's member can read, extend, finish or delete one."""
    fed, other = begun(server), begun(server)
    data = adapter_bytes(fed, 1)
    with server.http(fed.tokens["a"]) as http:
        path = place(fed, open_upload(http, fed, data))
        send(http, path, data, 0, 100)
    for token, expected in (
        (fed.tokens["b"], "unknown_upload"),
        (other.tokens["a"], "unknown_run"),
    ):
        with server.http(token) as http:
            replies = [
                http.get(path),
                send(http, path, data, 100, 200),
                http.put(path, params={"digest": digest_of(data)}),
                http.delete(path),
            ]
        assert [code(reply) for reply in replies] == [expected] * 4
    with server.http(fed.tokens["a"]) as http:
        assert http.get(path).json()["offset"] == 100
        assert http.delete(path).status_code == 204
        assert code(http.get(path)) == "unknown_upload"


def test_a_member_stores_a_few_adapters_in_a_round_and_no_more(server: Server) -> None:
    """Then 409 with advice, also for uploads opened before; the next round has room again."""
    fed = begun(server, method="fedavg", rounds=2)
    with server.http(fed.tokens["a"]) as http:
        late = adapter_bytes(fed, 9)
        waiting = place(fed, open_upload(http, fed, late))
        send(http, waiting, late, 0, len(late))
        for seed in range(ADAPTERS_A_ROUND):
            fed.members["a"].put_blob(fed.run.id, adapter_bytes(fed, seed))
        body = {"digest": digest_of(b"one more"), "size": 8}
        opening = paths.UPLOADS.format(run=fed.run.id)
        for refused in (
            http.post(opening, json=body),
            http.put(waiting, params={"digest": digest_of(late)}),
        ):
            assert (refused.status_code, code(refused)) == (409, "too_many_adapters")
            assert "hand one of them in" in refused.json()["detail"]
        assert open_upload(http, fed, adapter_bytes(fed, 0))["stored"]
        for name in "ab":
            fed.submit(name, 1, fed.adapter(0))
        fed.wait_for(1)
        assert http.post(opening, json=body).status_code == 201


def test_a_run_that_has_ended_takes_no_adapters_and_keeps_none_that_is_unused(
    server: Server,
) -> None:
    """Open uploads are dropped; a late update is answered as late without needing its bytes."""
    soon = {"deadline_seconds": 0.1}
    fed = begun(server, method="fedavg", rounds=1, aggregation=soon)
    data = adapter_bytes(fed, 1)
    with server.http(fed.tokens["a"]) as http:
        path = place(fed, open_upload(http, fed, data))
        fed.members["a"].put_blob(fed.run.id, adapter_bytes(fed, 2))
        fed.submit("b", 1, fed.adapter(3))
        fed.wait_for(1)
        assert code(http.get(path)) == "unknown_upload"
        body = {"digest": digest_of(data), "size": len(data)}
        refused = http.post(paths.UPLOADS.format(run=fed.run.id), json=body)
        assert (refused.status_code, code(refused)) == (409, "wrong_state")
        unused = paths.BLOB.format(run=fed.run.id, digest=digest_of(adapter_bytes(fed, 2)))
        assert code(http.get(unused)) == "unknown_blob"
    late = SubmitUpdate(adapter=digest_of(data), metrics=UpdateMetrics(examples=1, steps=2))
    assert fed.members["a"].submit_update(fed.run.id, 1, late).status == "late, unused"


def test_a_disk_that_would_fill_up_takes_no_upload(own: Callable[..., Server]) -> None:
    """507 with Retry-After before any bytes are accepted; the operator is told once."""
    fed = begun(own(spare_bytes=1 << 60))
    with fed.server.http(fed.tokens["a"]) as http:
        body = {"digest": digest_of(b"x"), "size": 1}
        refused = http.post(paths.UPLOADS.format(run=fed.run.id), json=body)
        assert (refused.status_code, code(refused)) == (507, "no_space")
        assert http.post(paths.UPLOADS.format(run=fed.run.id), json=body).status_code == 507
    assert int(refused.headers["Retry-After"]) > 0
    until(lambda: "no room for an update" in (fed.view().waiting_for or ""))
    events = fed.operator.events(fed.run.id).events
    assert [event.kind for event in events].count("waiting") == 1


def test_an_upload_fits_if_the_announced_bytes_of_all_others_fit_too(
    own: Callable[..., Server],
) -> None:
    """To the byte; a store without a limit always has room."""
    fed = begun(own())
    with fed.server.http(fed.tokens["a"]) as http:
        open_upload(http, fed, bytes(700))
    with Session(fed.server.app.state.services.database.engine) as session:
        check_room(session, size=50, spare=6, free=756)
        check_room(session, size=50, spare=6, free=None)
        with pytest.raises(NoSpace, match="755 bytes left, 700 of them reserved"):
            check_room(session, size=50, spare=6, free=755)


def test_one_upload_more_than_a_member_may_have_ends_the_oldest(server: Server) -> None:
    """Abandoned uploads do not lock a member out, and their bytes are deleted right away."""
    fed = begun(server)
    with server.http(fed.tokens["a"]) as http:
        opened = [open_upload(http, fed, bytes([n])) for n in range(SESSIONS)]
        for session in opened:
            send(http, place(fed, session), b"x", 0, 1)
        folder = fed.server.data_dir / "uploads"
        assert (folder / opened[0]["upload"]).exists()
        open_upload(http, fed, b"another")
        assert code(http.get(place(fed, opened[0]))) == "unknown_upload"
        assert not (folder / opened[0]["upload"]).exists()
        assert http.get(place(fed, opened[1])).json()["offset"] == 1


def test_a_session_expires_and_its_bytes_are_swept(
    own: Callable[..., Server],
) -> None:
    """After that it is unknown, its space is free, and a new session begins at 0."""
    fed = begun(own())
    data = adapter_bytes(fed, 1)
    folder = fed.server.data_dir / "uploads"
    with fed.server.http(fed.tokens["a"]) as http:
        path = place(fed, open_upload(http, fed, data))
        assert send(http, path, data, 0, 500).status_code == 202
        assert [file.stat().st_size for file in folder.iterdir()] == [500]
        with Session(fed.server.app.state.services.database.engine) as session, session.begin():
            session.execute(update(UploadRow).values(expires_at=now()))
        assert code(send(http, path, data, 500, 600)) == "unknown_upload"
        fed.server.do(sweep(fed.server.app.state.services))
        assert list(folder.iterdir()) == []
        assert open_upload(http, fed, data)["offset"] == 0


def test_blobs_that_nothing_names_are_swept_and_all_others_stay(
    own: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan is deleted after a grace period; adapters, sets, tokenizers and responses stay."""
    fed = begun(own(), rounds=1)
    for name in ("a", "b"):
        fed.members[name].submit_responses(fed.run.id, 1, 1, fed.responses(name, 1, 1, [1, 1]))
        fed.submit(name, 1, fed.adapter(1 if name == "a" else 2))
    fed.wait_for(1)
    services = fed.server.app.state.services
    before = {blob.name for blob in services.blobs.blobs()}
    orphan, _ = services.blobs.write([b"nobody names me"])
    fed.server.do(sweep(services))
    assert services.blobs.read(orphan) == b"nobody names me"
    monkeypatch.setattr(maintenance, "ORPHAN_SECONDS", -1.0)
    fed.server.do(sweep(services))
    assert {blob.name for blob in services.blobs.blobs()} == before
    assert len(before) >= 9


def damage(fed: Federation, data: bytes) -> None:
    """Spoil a stored blob, and have that found and repaired."""
    digest, services = digest_of(data), fed.server.app.state.services
    file = fed.server.data_dir / "blobs" / folder_name(digest) / file_name(digest)
    file.write_bytes(bytes(len(data)))
    with pytest.raises(DamagedBlob):
        services.blobs.read(digest)
    fed.server.do(heal(services))


def damaged(fed: Federation) -> list[str]:
    """What the run's log calls damaged."""
    events = fed.operator.events(fed.run.id).events
    return [event.details["what"] for event in events if event.kind == "blob damaged"]


def test_a_damaged_update_is_asked_for_again_and_never_averaged(
    own: Callable[..., Server],
) -> None:
    """The client gets its task again and resends its update, and the round ends as it should."""
    fed = begun(own(), method="fedavg", rounds=1)
    data = adapter_bytes(fed, 1)
    fed.submit("a", 1, fed.adapter(1))
    assert fed.members["a"].task(fed.run.id, 0).kind is TaskKind.WAIT
    file = fed.server.data_dir / "blobs" / folder_name(digest_of(data)) / file_name(digest_of(data))
    spoiled = bytearray(data)
    spoiled[-1] ^= 1
    file.write_bytes(spoiled)
    fed.submit("b", 1, fed.adapter(2))
    until(lambda: fed.members["a"].task(fed.run.id, 0).kind is TaskKind.TRAIN)
    assert damaged(fed) == ["update of a in round 1", "blob of a"]
    assert file.with_name(file.name + ".damaged").read_bytes() == spoiled
    digest = fed.members["a"].put_blob(fed.run.id, data)
    update = SubmitUpdate(adapter=digest, metrics=UpdateMetrics(examples=10, steps=2))
    assert fed.members["a"].submit_update(fed.run.id, 1, update).status == "accepted"
    final = fed.wait_for(1)
    assert final.state == "finished"
    expected = encode_adapter(
        fed.run.model.layout,
        {
            name: ((fed.adapter(1)[name].astype("f8") + fed.adapter(2)[name]) / 2).astype("f4")
            for name in fed.run.model.layout.tensors
        },
    )
    assert fed.operator.global_adapter(fed.run.id, "final") == expected


def test_a_damaged_update_is_asked_for_again_while_others_train(own: Callable[..., Server]) -> None:
    """The round goes on as before."""
    fed = begun(own(), method="fedavg", rounds=1)
    fed.submit("a", 1, fed.adapter(1))
    damage(fed, adapter_bytes(fed, 1))
    until(lambda: fed.members["a"].task(fed.run.id, 0).kind is TaskKind.TRAIN)
    for name, seed in (("a", 1), ("b", 2)):
        fed.submit(name, 1, fed.adapter(seed))
    assert fed.wait_for(1).state == "finished"


def test_a_damaged_update_of_a_run_that_has_ended_is_told_and_still_counts(
    own: Callable[..., Server],
) -> None:
    """Nobody is asked for it again, and the round keeps its number of updates."""
    fed = begun(own(), method="fedavg", rounds=1)
    fed.submit("a", 1, fed.adapter(1))
    fed.submit("b", 1, fed.adapter(2))
    fed.wait_for(1)
    damage(fed, adapter_bytes(fed, 1))
    until(lambda: damaged(fed) == ["update of a in round 1"])
    assert fed.view().rounds[1].updates == 2


def test_an_excluded_update_stays_so_when_it_is_damaged(own: Callable[..., Server]) -> None:
    """Its member is not asked for it again."""
    fed = begun(own(), method="fedavg", rounds=1)
    fed.submit("a", 1, fed.adapter(1))
    fed.operator.exclude(fed.run.id, 1, "a")
    damage(fed, adapter_bytes(fed, 1))
    assert fed.members["a"].task(fed.run.id, 0).kind is TaskKind.WAIT


def test_a_round_ends_whose_only_answer_to_a_public_step_was_damaged(
    own: Callable[..., Server],
) -> None:
    """Both have submitted updates, so no more answers come: the exchange ends with its round."""
    fed = begun(own(), rounds=1, method={"deadline_seconds": 3600})
    body = fed.responses("a", 1, 1, [1, 1])
    fed.members["a"].submit_responses(fed.run.id, 1, 1, body)
    damage(fed, body)
    for name, seed in (("a", 1), ("b", 2)):
        fed.submit(name, 1, fed.adapter(seed))
    assert fed.wait_for(1).state == "finished"


def test_nobody_waits_for_an_answer_that_was_damaged(own: Callable[..., Server]) -> None:
    """Its sender trains on its own responses, and waits for the others in the next public step."""
    fed = begun(own(), rounds=1, method={"quorum": 2, "deadline_seconds": 3600})
    body = fed.responses("a", 1, 1, [1, 1])
    fed.members["a"].submit_responses(fed.run.id, 1, 1, body)
    damage(fed, body)
    with pytest.raises(RoundClosed):
        fed.members["a"].exchanged(fed.run.id, 1, 1)
    rest = fed.responses("b", 1, 1, [1, 1])
    fed.members["b"].submit_responses(fed.run.id, 1, 1, rest)
    until(lambda: bool(fed.view().rounds[1].public_steps))


def test_nobody_waits_in_a_step_for_a_member_that_is_in_a_later_one(
    own: Callable[..., Server],
) -> None:
    """A coordinator restored from a mid-round backup lacks answers that were sent since."""
    public_step = {"quorum": 2, "deadline_seconds": 3600}
    fed = begun(own(), rounds=1, local_steps=4, method=public_step)
    for name, step in (("a", 2), ("b", 1)):
        body = fed.responses(name, 1, step, [1, 1])
        fed.members[name].submit_responses(fed.run.id, 1, step, body)
    until(lambda: [closed.public_step for closed in fed.view().rounds[1].public_steps] == [1])


def test_nobody_is_told_to_wait_in_a_step_for_a_member_that_is_in_a_later_one(
    own: Callable[..., Server],
) -> None:
    """What members and the operator read names those that the coordinator waits for."""
    fed = begun(own(), rounds=1, local_steps=4, clients=3, method={"quorum": 3})
    for name, step in (("a", 2), ("b", 1)):
        body = fed.responses(name, 1, step, [1, 1])
        fed.members[name].submit_responses(fed.run.id, 1, step, body)
    with fed.server.http(fed.tokens["b"]) as http:
        path = paths.PUBLIC_STEP_EXCHANGED.format(run=fed.run.id, round=1, public_step=1)
        reply = http.get(path)
    assert (reply.status_code, reply.headers[paths.WAITS_HEADER]) == (
        204,
        "c to answer public step 1",
    )
    assert (fed.view().activity or "").endswith("1 of 2 organisations have answered. Waits for c.")


def test_a_damaged_global_adapter_is_made_again_of_its_updates(own: Callable[..., Server]) -> None:
    """And the initial one from the seed; until then nobody gets the damaged bytes."""
    fed = begun(own(), method="fedavg", rounds=2)
    for name, seed in (("a", 1), ("b", 2)):
        fed.submit(name, 1, fed.adapter(seed))
    view = fed.wait_for(1)
    for summary in view.rounds[:2]:
        digest = summary.adapter or ""
        path = paths.BLOB.format(run=fed.run.id, digest=digest)
        file = fed.server.data_dir / "blobs" / folder_name(digest) / file_name(digest)
        right = file.read_bytes()
        file.write_bytes(right[:-1] + bytes([right[-1] ^ 4]))
        with fed.server.http(fed.tokens["a"]) as http:
            refused = http.get(path)
            assert (refused.status_code, code(refused)) == (503, "damaged_blob")
            until(lambda path=path, http=http: http.get(path).status_code == 200)  # type: ignore[misc]
            assert http.get(path).content == right


@pytest.mark.parametrize("needed", [True, False], ids=["its start", "an earlier round's"])
def test_an_adapter_that_cannot_be_made_again_is_told_of_once(
    needed: bool, own: Callable[..., Server]
) -> None:
    """If the round begins from it: each member that asks for it finds it missing again.

    The operator is asked to put it back. A run does not wait for an earlier round's.
    """
    fed = begun(own(), method="fedavg", rounds=3)
    for round_ in (1,) if needed else (1, 2):
        for name, seed in (("a", 1), ("b", 2)):
            fed.submit(name, round_, fed.adapter(seed + round_ - 1))
        digest = fed.wait_for(round_).rounds[1].adapter or ""
    lost = [digest, *(digest_of(adapter_bytes(fed, seed)) for seed in (1, 2))]
    for each in lost:
        (fed.server.data_dir / "blobs" / folder_name(each) / file_name(each)).unlink()
    path = paths.BLOB.format(run=fed.run.id, digest=digest)

    def kinds() -> list[str]:
        return [event.kind for event in fed.operator.events(fed.run.id).events]

    with fed.server.http(fed.tokens["a"]) as http:
        assert code(http.get(path)) == "damaged_blob"
        # Before it is found missing again, because the server repairs it beside this.
        until(lambda: ("input damaged" if needed else "blob damaged") in kinds())
        for _ in range(2):
            assert code(http.get(path)) == "damaged_blob"
            fed.server.do(heal(fed.server.app.state.services))
    if needed:
        assert f"({digest}) cannot be read" in (fed.view().waiting_for or "")
        assert (kinds().count("blob damaged"), kinds().count("input damaged")) == (1, 1)
    else:
        assert "input damaged" not in kinds()


def test_a_blob_that_was_sent_again_meanwhile_is_left_alone(own: Callable[..., Server]) -> None:
    """Another replica may already have repaired it."""
    fed = begun(own(tick_seconds=60))
    digest = fed.members["a"].put_blob(fed.run.id, adapter_bytes(fed, 1))
    path = paths.BLOB.format(run=fed.run.id, digest=digest)
    file = fed.server.data_dir / "blobs" / folder_name(digest) / file_name(digest)
    right = file.read_bytes()
    with fed.server.http(fed.tokens["a"]) as http:
        file.write_bytes(bytes(len(right)))
        assert code(http.get(path)) == "damaged_blob"
        file.write_bytes(right)
        fed.server.do(heal(fed.server.app.state.services))
        assert http.get(path).content == right
    kinds = [event.kind for event in fed.operator.events(fed.run.id).events]
    assert "blob damaged" not in kinds
