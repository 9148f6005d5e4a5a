"""The order of fsyncs, commit and receipt, as strace sees it; and that a wrong order is seen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.faults.order import judge, missing, run
from support.chaos.straced import Call, calls

pytestmark = [pytest.mark.full, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

SYNCS = ("fsync", "fdatasync")
LEFT_OUT: dict[str, Callable[[Call], bool]] = {
    "the database's log": lambda call: call.name in SYNCS and call.file.endswith("-wal"),
    "files": lambda call: (
        call.name in SYNCS
        and Path(call.file).parent.name != "blobs"
        and not call.file.endswith("-wal")
    ),
    "folders": lambda call: call.name in SYNCS and Path(call.file).parent.name == "blobs",
    "renames": lambda call: call.name.startswith("rename"),
}


def test_every_receipt_comes_after_its_fsyncs(tmp_path: Path) -> None:
    """File, name, folder, database log, and only then the answer: blobs, responses, updates.

    Where one of these is struck from the record, every receipt that needs it is found wanting.
    """
    found = run(8, seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["early"]
    assert (found["blob"], found["responses"], found["update"]) == (2, 4, 2)
    record = list(calls(tmp_path / "trace"))
    for what, left_out in LEFT_OUT.items():
        rest = [call for call in record if not left_out(call)]
        assert len(judge(rest).early) == 8, what


def stored(file: str, blob: str) -> list[Call]:
    """The calls that store a file as a blob."""
    return [
        Call("fsync", file, ""),
        Call("rename", file, blob),
        Call("fsync", str(Path(blob).parent), ""),
    ]


@pytest.mark.parametrize("log_is_synced", [True, False])
def test_the_same_responses_again_are_no_receipt_too_early(log_is_synced: bool) -> None:
    """They are the same blob, which is durable; but their row must be, too."""
    asked = Call(
        "recvfrom", "TCP:[a]", "POST /v1/runs/r/rounds/1/public-steps/1/responses HTTP/1.1"
    )
    answered = Call("sendto", "TCP:[a]", "HTTP/1.1 201 Created")
    log = [Call("fdatasync", "coordinator.db-wal", "")]
    first = [asked, *stored("incoming/1", "blobs/ab/c"), *log, answered]
    second = [asked, *stored("incoming/2", "blobs/ab/c"), *(log if log_is_synced else []), answered]
    found = judge([*first, *second])
    assert found.seen == {"responses": 2}
    assert len(found.early) == (0 if log_is_synced else 1)
