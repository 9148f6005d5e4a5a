"""The ledger: requests are recorded in order before they are sent, and changes to the record are
found.
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from pubswap_client.consent.audit_commands import content
from pubswap_client.consent.ledger import (
    BEGINNING,
    LARGEST_CONTENT,
    Ledger,
    body_path,
    day_files,
    described,
    entries,
    ledger_folder,
    verify,
)
from pubswap_protocol import paths
from pubswap_protocol.digests import hexadecimal
from pubswap_protocol.errors import LedgerDamaged, NotSaved
from pubswap_protocol.tensors.responses import Response, encode_responses

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
BEAT = ("POST", "/v1/runs/r/heartbeat", "application/json")
CHUNK = ("PATCH", paths.UPLOAD.format(run="r", upload="u"), paths.BYTES_TYPE)


def clock(*days: int) -> Callable[[], datetime]:
    """A clock that shows noon of each of these days in turn."""
    left = iter(days)
    return lambda: NOON + timedelta(days=next(left))


def written(state: Path, *days: int) -> Path:
    """Write a ledger with one heartbeat at noon of each of these days; returns its folder."""
    ledger = Ledger(state, clock=clock(*days))
    for number in range(len(days)):
        ledger.record(*BEAT, [json.dumps({"step": number}).encode()])
    return ledger_folder(state)


@pytest.mark.parametrize(
    ("method", "target", "said"),
    [
        ("POST", "/v1/runs/r1/rounds/3/public-steps/2/responses", ("responses", "r1", 3, 2)),
        ("GET", "/v1/runs/r1/rounds/3/public-steps/2", ("question", "r1", 3, 2)),
        ("GET", "/v1/runs/r1/task?wait=25", ("question", "r1", None, None)),
        ("GET", "/v1/version", ("question", None, None, None)),
        ("DELETE", "/v1/else", ("other", None, None, None)),
        ("PUT", "/v1/runs/r/blobs/uploads/u?digest=d", ("upload", "r", None, None)),
        ("PUT", "https://s3.example/bucket/u", ("adapter", None, None, None)),
    ],
)
def test_a_request_is_described_by_what_it_is_for(
    method: str, target: str, said: tuple[object, ...]
) -> None:
    """Kind, run, round and public step come from the path, whatever the query."""
    fields = ("kind", "run", "round", "public_step")
    assert described(method, target) == dict(zip(fields, said, strict=True))


def test_an_older_ledger_is_read_and_continued(tmp_path: Path) -> None:
    """It says `exchange` for the public step's number; its hashes stay as they are."""
    target = paths.PUBLIC_STEP_RESPONSES.format(run="r", round=3, public_step=2)
    Ledger(tmp_path, clock=clock(0)).record("POST", target, paths.TENSORS_TYPE, [b"t"])
    [day] = day_files(folder := ledger_folder(tmp_path))
    older = day.read_bytes().replace(b'"public_step":2', b'"exchange":2')
    body = older[: older.rindex(b',"hash"')]
    hash_ = f"blake3:{blake3(body).hexdigest()}"
    day.write_bytes(body + f',"hash":"{hash_}"}}\n'.encode())
    (folder / "head").write_text(f"1 {hash_}\n")
    assert verify(folder).faults == ()
    Ledger(tmp_path, clock=clock(0)).record(*BEAT, [b"{}"])
    first, second = entries(folder)
    assert (first.round, first.public_step, first.hash) == (3, 2, hash_)
    assert second.previous == hash_
    assert (verify(folder).entries, verify(folder).faults) == (2, ())


def test_entries_hold_size_digest_and_readable_content(tmp_path: Path) -> None:
    """Digests equal BLAKE3's, hashes form a chain, and only the owner can read the file."""
    folder = written(tmp_path, 0, 0, 1)
    first, second, third = entries(folder)
    body = b'{"step": 0}'
    assert (first.size, first.digest) == (len(body), f"blake3:{blake3(body).hexdigest()}")
    assert first.content == {"step": 0}
    assert [entry.number for entry in (first, second, third)] == [1, 2, 3]
    [of_first, of_second] = day_files(folder)[0].read_bytes().splitlines()
    stated = json.loads(of_first)["hash"]
    assert stated == f"blake3:{blake3(of_first[: of_first.rindex(b',')]).hexdigest()}"
    assert json.loads(of_second)["previous"] == stated == second.previous
    assert [day.stem for day in day_files(folder)] == ["2026-11-23", "2026-11-24"]
    assert day_files(folder)[0].stat().st_mode & 0o777 == 0o600
    assert verify(folder).faults == ()
    assert verify(folder).entries == 3


def test_what_is_kept_of_each_body(tmp_path: Path) -> None:
    """Responses are kept readable, adapters and invites never."""
    responses = [Response(np.array([5, 6], np.int32), np.zeros(2, np.float32)) for _ in range(2)]
    body = encode_responses([7], [responses])
    where = paths.PUBLIC_STEP_RESPONSES.format(run="r", round=1, public_step=1)
    chunk = ("PATCH", paths.UPLOAD.format(run="r", upload="u"), paths.BYTES_TYPE, [b"wx", b"yz"])
    invite = ("POST", paths.ENROLL, "application/json", [b'{"invite": "secret-code"}'])
    ledger = Ledger(tmp_path)
    ledger.record("POST", where, paths.TENSORS_TYPE, [body])
    ledger.record(*chunk)
    ledger.record(*invite)
    folder = ledger_folder(tmp_path)
    sent, adapter, enrolment = entries(folder)
    assert (sent.kept, adapter.kept, adapter.size) == (True, False, 4)
    shown = list(content(folder, sent, lambda tokens: str(tokens.sum())))
    assert shown == [f'public prompt 7, response {n}: "11"' for n in (1, 2)]
    assert enrolment.content is None
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"secret-code" not in kept and b"wxyz" not in kept
    assert verify(folder).faults == ()
    for path in (folder / "bodies").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert len(verify(folder).faults) == 1
    for _ in range(2):  # first changed, then missing
        (said,) = content(folder, sent, None)
        assert said == "not the body that was sent: see `pubswap client audit verify`"
        body_path(folder, sent.digest).unlink(missing_ok=True)


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    """Each byte of each file is flipped, removed, and replaced by a space."""
    folder = written(tmp_path, 0, 1)
    for path in (*day_files(folder), folder / "head"):
        original = path.read_bytes()
        for place in range(len(original)):
            before, byte, after = (
                original[:place],
                original[place : place + 1],
                original[place + 1 :],
            )
            for other in (bytes([byte[0] ^ 1]), b"", b" "):
                if other != byte:
                    path.write_bytes(before + other + after)
                    assert verify(folder).faults, (path.name, place, other)
        path.write_bytes(original)
    assert verify(folder).faults == ()


def test_lines_and_days_that_were_moved_removed_or_doubled_are_found(tmp_path: Path) -> None:
    """So is a truncated end, whichever the byte, unless it only cuts an unfinished entry."""
    folder = written(tmp_path, 0, 0, 0, 1, 2)
    first, second, third = day_files(folder)
    lines = first.read_bytes().splitlines(keepends=True)
    orders = ([1, 0, 2], [0, 2], [1, 2], [0, 0, 1, 2], [0, 1, 2, 2], [0, 1], [])
    for order in orders:
        first.write_bytes(b"".join(lines[number] for number in order))
        assert verify(folder).faults, order
    first.write_bytes(b"".join(lines) + b"{")
    assert verify(folder).faults == ("2026-11-23.jsonl, line 4: changed, or cut off",)
    first.write_bytes(b"".join(lines))
    for day in (first, second, third):
        day.rename(tmp_path / "away")
        assert verify(folder).faults, day
        (tmp_path / "away").rename(folder / "2026-11-30.jsonl")
        assert verify(folder).faults, day
        (folder / "2026-11-30.jsonl").rename(day)
    whole = third.read_bytes()
    for size in range(len(whole)):
        third.write_bytes(whole[:size])
        assert verify(folder).faults == ("head: entries 5 to 5 are missing",)
    third.write_bytes(whole)
    (folder / "head").unlink()
    assert verify(folder).faults == ("head: missing",)


def test_a_rewritten_ledger_does_not_match_an_earlier_head(tmp_path: Path) -> None:
    """The forged chain is valid in itself, but its head differs from an earlier one."""
    honest = verify(written(tmp_path / "a", 0, 0)).head
    forged = verify(written(tmp_path / "b", 0, 1))
    assert forged.faults == ()
    assert forged.head != honest


def test_a_crash_in_an_entry_costs_that_entry_alone(tmp_path: Path) -> None:
    """An unfinished entry's request was never sent; the next entry gets its number."""
    folder = written(tmp_path, 0, 0)
    [path] = day_files(folder)
    whole, head = path.read_bytes(), (folder / "head").read_text()
    for torn in (b"{", b'{"number":3,"at":"2026'):
        path.write_bytes(whole + torn)
        assert verify(folder).faults == ()
        Ledger(tmp_path, clock=clock(0)).record(*BEAT, [b"{}"])
        assert [entry.number for entry in entries(folder)] == [1, 2, 3]
        assert verify(folder).faults == ()
        path.write_bytes(whole)
        (folder / "head").write_text(head)
    (folder / "2026-11-24.jsonl").write_bytes(torn)  # the first entry of a day
    assert verify(folder).faults == ()
    Ledger(tmp_path, clock=clock(1)).record(*BEAT, [b"{}"])
    assert [entry.number for entry in entries(folder)] == [1, 2, 3]
    assert verify(folder).faults == ()
    path.write_bytes(torn)  # the first entry of all
    day_files(folder)[1].unlink()
    with pytest.raises(LedgerDamaged, match="entries 1 to 3 are missing"):
        Ledger(tmp_path).record(*BEAT, [b"{}"])
    (folder / "head").write_text(f"0 {BEGINNING}\n")
    Ledger(tmp_path, clock=clock(0)).record(*BEAT, [b"{}"])
    assert [entry.number for entry in entries(folder)] == [1]
    assert verify(folder).faults == ()
    path.unlink()
    with pytest.raises(LedgerDamaged, match="entries 1 to 1 are missing"):
        Ledger(tmp_path).record(*BEAT, [b"{}"])


def test_a_clock_that_goes_back_keeps_the_order(tmp_path: Path) -> None:
    """Entries go to the newest day's file, with the time that the clock showed."""
    folder = written(tmp_path, 1, 0, 2)
    assert [day.stem for day in day_files(folder)] == ["2026-11-24", "2026-11-25"]
    assert [entry.at[:10] for entry in entries(folder)] == [
        "2026-11-24",
        "2026-11-23",
        "2026-11-25",
    ]
    assert verify(folder).faults == ()


def test_a_full_disk_stops_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is unchanged, and continues once there is room."""
    folder = written(tmp_path, 0)
    before = verify(folder)
    ledger = Ledger(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _full)
        with pytest.raises(NotSaved, match="free some space"):
            ledger.record(*BEAT, [b"{}"])
    assert verify(folder) == before
    ledger.record(*BEAT, [b"{}"])
    assert verify(folder).entries == 2


def _full(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_changed_end_stops_recording_too(tmp_path: Path) -> None:
    """The chain cannot continue from it; the message says what to do."""
    folder = written(tmp_path, 0)
    [path] = day_files(folder)
    path.write_bytes(path.read_bytes().replace(b"heartbeat", b"heartbeet", 1))
    with pytest.raises(LedgerDamaged, match="audit verify"):
        Ledger(tmp_path).record(*BEAT, [b"{}"])
    shutil.move(folder, tmp_path / "old")
    Ledger(tmp_path).record(*BEAT, [b"{}"])
    assert verify(folder).entries == 1


def cut(folder: Path, kept: bytes, *away: Path) -> None:
    """Delete the files `away`, and truncate the last remaining day to `kept`."""
    for path in away:
        path.unlink()
    if days := day_files(folder):
        days[-1].write_bytes(kept)


def test_a_cut_end_is_not_written_over(tmp_path: Path) -> None:
    """Cut at any byte, by days or entirely, the missing part is still found after more requests.

    A running daemon stops like one that starts, and continues once the files are back.
    """
    folder, running = ledger_folder(tmp_path), Ledger(tmp_path, clock=clock(0, 0, 1, 1, 2, 2))
    for _ in range(5):
        running.record(*BEAT, [b"{}"])
    days = day_files(folder)
    whole = {path: path.read_bytes() for path in days}
    first, second, third = whole.values()
    cuts = [(days[2:], second), (days[1:], first), (days[1:], first[: first.index(b"\n") + 1])]
    cuts += [((), third[:size]) for size in range(len(third))] + [(days, b"")]
    for away, kept in cuts:
        cut(folder, kept, *away)
        left = {path: path.read_bytes() for path in day_files(folder)}
        for ledger in (running, Ledger(tmp_path, clock=clock(2, 2))):
            with pytest.raises(LedgerDamaged, match="Restore") as stopped:
                ledger.record(*BEAT, [b"{}"])
            assert str(folder) in stopped.value.detail
        assert {path: path.read_bytes() for path in day_files(folder)} == left
        assert any("missing" in fault for fault in verify(folder).faults)
        for path, data in whole.items():
            path.write_bytes(data)
    running.record(*BEAT, [b"{}"])
    assert (verify(folder).entries, verify(folder).faults) == (6, ())


def test_an_end_that_was_replaced_is_not_written_over(tmp_path: Path) -> None:
    """It has as many entries as before, but the last one is from another ledger."""
    folder, other = written(tmp_path / "a", 0, 0), written(tmp_path / "b", 0, 1)
    [path] = day_files(folder)
    path.unlink()
    for day in day_files(other):
        shutil.copy(day, folder)
    with pytest.raises(LedgerDamaged):
        Ledger(tmp_path / "a").record(*BEAT, [b"{}"])
    assert verify(folder).faults == ("head: changed",)


@pytest.mark.parametrize("head", [None, b"", b"3", b"x y\n", b"\xff"])
def test_an_invalid_head_stops_recording(tmp_path: Path, head: bytes | None) -> None:
    """The head is written atomically before its request is sent, so no crash leaves such a head."""
    folder = written(tmp_path, 0, 0)
    (folder / "head").unlink()
    if head is not None:
        (folder / "head").write_bytes(head)
    with pytest.raises(LedgerDamaged, match="head"):
        Ledger(tmp_path).record(*BEAT, [b"{}"])
    assert len(verify(folder).faults) == 1


def test_a_crash_between_an_entry_and_the_head_is_no_damage(tmp_path: Path) -> None:
    """Even at the first entry, or several times in a row: the next entry updates the head."""
    folder = ledger_folder(tmp_path)
    for number in range(1, 4):
        written(tmp_path, 0)
        assert (folder / "head").read_text().startswith(f"{number} ")
        (folder / "head").write_text(f"0 {BEGINNING}\n")
        assert verify(folder).faults == ()


def test_the_disk_may_be_full_at_each_of_an_entry_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file cannot be written, even at the first entry, nothing is sent and the ledger
    continues later.
    """
    real = os.write
    answers = (
        "POST",
        paths.PUBLIC_STEP_RESPONSES.format(run="r", round=1, public_step=1),
        paths.TENSORS_TYPE,
    )
    for begun in (False, True):
        for number, name in enumerate(("head.tmp", ".jsonl", "bodies/")):
            state = tmp_path / f"{begun}{number}"
            ledger = Ledger(state)
            if begun:
                ledger.record(*BEAT, [b"{}"])

            def full(descriptor: int, data: bytes, name: str = name) -> int:
                if name in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
                    raise OSError(28, "No space left on device")
                return real(descriptor, data)

            for _ in range(3):
                with (
                    monkeypatch.context() as disk,
                    pytest.raises(NotSaved, match="free some space"),
                ):
                    disk.setattr(os, "write", full)
                    ledger.record(*answers, [b"tensors"])
            ledger.record(*answers, [b"tensors"])
            found = verify(ledger_folder(state))
            assert found.faults == ()
            assert found.entries >= 1 + begun


def test_large_json_is_kept_beside_its_entry(tmp_path: Path) -> None:
    """It stays readable there, like everything but tensors, and the entry stays small."""
    ledger, folder = Ledger(tmp_path), ledger_folder(tmp_path)
    body = json.dumps({"text": "a" * LARGEST_CONTENT}).encode()
    ledger.record("POST", paths.EVALUATION.format(run="r", round=1), "application/json", [body])
    (entry,) = entries(folder)
    assert (entry.content, entry.kept) == (None, True)
    assert body_path(folder, entry.digest).read_bytes() == body
    where = f"in the ledger's bodies/{hexadecimal(entry.digest)}"
    assert list(content(folder, entry, None)) == [where]
    ledger.record("POST", paths.ENROLL, "application/json", [body])
    assert len(list((folder / "bodies").iterdir())) == 1


def test_processes_that_share_a_state_folder_make_one_chain(tmp_path: Path) -> None:
    """For instance the daemon and a command."""
    with multiprocessing.get_context("fork").Pool(3) as pool:
        pool.starmap(_record_ten, [(tmp_path, name) for name in "abc"])
    verdict = verify(ledger_folder(tmp_path))
    assert (verdict.entries, verdict.faults) == (30, ())


def _record_ten(state: Path, name: str) -> None:
    ledger = Ledger(state)
    for _ in range(10):
        ledger.record(*BEAT, [json.dumps({"by": name}).encode()])
