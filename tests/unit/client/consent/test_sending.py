"""A request is sent only after it has been recorded."""

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pubswap_client.consent.ledger import Ledger, day_files, entries, ledger_folder
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.coordinator.transfers import BlobRequests
from pubswap_client.daemon.heartbeats import Heartbeats
from pubswap_client.daemon.reporters import StepReport
from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidSettings, LedgerDamaged, NotSaved, PubSwapError
from pubswap_protocol.messages import Enroll, Progress, UploadPart
from support.client.counting import Counting, counting

BEGUN = Progress(round=1, step=0, steps=9)


@pytest.fixture
def url() -> Iterator[str]:
    with counting() as address:
        yield address


PART, SECRET, PART_BYTES = (
    "/bucket/uploads/u/0",
    "?X-Amz-Signature=secret",
    memoryview(b"the part."),
)


def everything(api: CoordinatorClient) -> int:
    """Send a request with each kind of body; returns how many were refused."""
    blobs = BlobRequests(api, "r")
    acts = (
        lambda: api.version(),
        lambda: api.enroll("code"),
        lambda: api.submit_responses("r", 1, 1, b"tensors"),
        lambda: blobs.send("u", 0, memoryview(bytes(range(256)) * 4096)),
        lambda: blobs.finish("u", "blake3:0"),
        lambda: list(blobs.stream("blake3:0", 3).__enter__().chunks),
        lambda: api.once("DELETE", "/v1/x?y=%C3%BC"),
        lambda: blobs.put(UploadPart(first=0, size=9, url=api.url + PART + SECRET), PART_BYTES),
    )
    refused = 0
    for act in acts:
        try:
            act()
        except PubSwapError:
            refused += 1
    return refused


def test_each_request_is_recorded_as_it_arrives(url: str) -> None:
    """Method, path with query, and the whole body, even a chunk of a megabyte; for a bucket, the
    whole URL without the signature.
    """
    recorded: list[tuple[str, str, bytes]] = []

    def record(method: str, target: str, media_type: str, pieces: Iterable[bytes]) -> None:
        recorded.append((method, target, b"".join(pieces)))

    with CoordinatorClient(url, "token", ONCE, on_send=record) as api:
        assert everything(api) == 8
    *others, part = Counting.came
    assert recorded[:-1] == others
    assert len(recorded) == 8
    assert part == ("PUT", PART + SECRET, bytes(PART_BYTES))
    assert recorded[-1] == ("PUT", api.url + PART, bytes(PART_BYTES))
    assert recorded[1] == ("POST", paths.ENROLL, Enroll(invite="code").model_dump_json().encode())


def test_requests_to_an_address_with_a_path_are_recorded_alike(url: str, tmp_path: Path) -> None:
    """Their kinds are recognised, as the policy requires, and an invite is never kept."""
    for number, below in enumerate(("", "/pubswap/", "/v1/runs/r/away")):
        ledger = Ledger(tmp_path / str(number))
        with CoordinatorClient(url + below, "token", ONCE, on_send=ledger.record) as api:
            assert everything(api) == 8
    bare, *others = (list(entries(ledger_folder(tmp_path / str(n)))) for n in range(3))
    for other in others:
        assert [(one.kind, one.target, one.content, one.kept) for one in other[:-1]] == [
            (one.kind, one.target, one.content, one.kept) for one in bare[:-1]
        ]
    with pytest.raises(InvalidSettings, match="is not a coordinator's address"):
        CoordinatorClient(url + "/v1/runs/r/away?x=")


def test_what_cannot_be_recorded_is_not_sent(url: str) -> None:
    """Not a byte of it, whatever its kind."""

    def refuse(method: str, target: str, media_type: str, pieces: Iterable[bytes]) -> None:
        raise NotSaved("The disk is full.")

    with CoordinatorClient(url, "token", ONCE, on_send=refuse) as api:
        assert everything(api) == 8
    assert Counting.came == []


@pytest.mark.parametrize("file", [".jsonl", "head.tmp"])
def test_a_full_disk_stops_training_before_anything_is_sent(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Whether the entry or the head cannot be written; the next step's heartbeat ends the round."""
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(file):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    ledger = Ledger(tmp_path)
    with CoordinatorClient(url, "token", ONCE, on_send=ledger.record) as api:
        assert everything(api) == len(Counting.came) == 8
        monkeypatch.setattr(os, "write", full)
        assert everything(api) == 8
        with (
            Heartbeats(partial(api.heartbeat, "r"), BEGUN, private=True) as heartbeats,
            pytest.raises(NotSaved, match="free some space"),
        ):
            heartbeats.step(StepReport(1, 2, 1, 9, public=False, completed=[]))
    assert len(Counting.came) == 8


def test_a_truncated_ledger_stops_before_anything_is_sent(url: str, tmp_path: Path) -> None:
    """Not a byte is sent; the message says what to do."""
    ledger = Ledger(tmp_path)
    with CoordinatorClient(url, "token", ONCE, on_send=ledger.record) as api:
        assert everything(api) == 8
        (day,) = day_files(ledger_folder(tmp_path))
        day.write_bytes(b"".join(day.read_bytes().splitlines(keepends=True)[:-2]))
        assert everything(api) == 8
        with pytest.raises(LedgerDamaged, match="entries 7 to 8 are missing, so nothing is sent"):
            api.version()
    assert len(Counting.came) == 8
