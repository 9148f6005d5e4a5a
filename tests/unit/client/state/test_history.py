"""The history of rounds: a full disk, unreadable lines, and rounds that were repeated."""

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pubswap_client.state import history
from pubswap_client.state.history import RoundFigures
from pubswap_protocol import files
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import NotSaved


def figures(round_: int, start: str = "") -> RoundFigures:
    return RoundFigures(
        run="r1",
        round=round_,
        start=digest_of(start.encode()),
        at=datetime(2026, 1, 1, tzinfo=UTC),
        steps=2,
        rewards=[0.25, float("nan")],
        reward=0.25,
        loss=None,
        kl=1e-9,
        clip_share=0.0,
        zero_variance_share=0.5,
        response_tokens=7.5,
        tokens=60,
        seconds=2.0,
        waited=0.5,
    )


def test_a_round_is_there_once_for_each_time_it_was_trained(tmp_path: Path) -> None:
    """Reported again after a restart it counts once, as last reported; trained again from another
    adapter it counts twice.
    """
    path = tmp_path / "history.jsonl"
    late = figures(3).model_copy(update={"late": True})
    for one in (figures(1), figures(1), figures(2), figures(2, "rolled back"), figures(3), late):
        history.append(path, one)
    assert [(one.round, one.late) for one in history.read(path, "r1", RoundFigures)] == [
        *((1, False), (2, False), (2, False)),
        (3, True),
    ]
    assert history.read(path, "another run", RoundFigures) == []
    assert path.stat().st_mode & 0o777 == 0o600
    assert history.read(path, "r1", RoundFigures)[0].rewards == [0.25, None]


def test_an_unreadable_line_is_skipped(tmp_path: Path) -> None:
    """Extra fields of a later version are ignored too."""
    path = tmp_path / "history.jsonl"
    line = figures(1).model_dump_json()
    path.write_text(f'rubbish\n{line[:-1]},"more":1}}\n[]\n')
    history.append(path, figures(2))
    assert [one.round for one in history.read(path, "r1", RoundFigures)] == [1, 2]


def test_a_full_disk_is_reported_and_leaves_the_history_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file; no line is lost or incomplete."""
    path = tmp_path / "history.jsonl"
    history.append(path, figures(1))
    before, write = path.read_bytes(), files.write_all

    def half(descriptor: int, data: bytes) -> None:
        write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_all", half)
    with pytest.raises(NotSaved, match=r"history\.jsonl could not be saved.*No space left"):
        history.append(path, figures(2))
    assert path.read_bytes() == before
