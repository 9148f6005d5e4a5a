"""The relay's record of answered requests."""

from pathlib import Path

import pytest

from pubswap_client.coordinator import relay
from pubswap_client.coordinator.relay import AnsweredRequests


def test_the_last_requests_are_remembered_and_no_more_than_twice_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, in the file and after a restart of the relay."""
    monkeypatch.setattr(relay, "REMEMBERED", 4)
    path = tmp_path / "done"
    names = [f"request-{number}" for number in range(100)]
    answered = AnsweredRequests(path)
    for name in names:
        answered.add(name)
        assert len(path.read_text().split()) <= 8
        assert sum(each in answered for each in names) <= 8
    for process in (answered, AnsweredRequests(path)):
        assert all(name in process for name in names[-4:])
        assert names[0] not in process


def test_half_a_line_of_a_killed_relay_harms_no_other_name(tmp_path: Path) -> None:
    """The next name starts on its own line."""
    path = tmp_path / "done"
    path.write_text("first\nsec")
    AnsweredRequests(path).add("third")
    assert path.read_text().split() == ["first", "sec", "third"]
