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
