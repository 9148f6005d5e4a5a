"""`pubswap client audit`: the entries that `show` lists, and the copy that `verify` reads."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pubswap_client.consent.ledger import Ledger, entries, ledger_folder
from pubswap_protocol import paths
from pubswap_protocol.cli import build_app

BEAT = ("POST", paths.HEARTBEAT.format(run="r"), "application/json", [b'{"step": 1}'])
HELLO = ("POST", paths.HELLO.format(run="r"), "application/json", [b"{}"])
TASK = ("GET", paths.TASK.format(run="r"), "", [])


def shown(state: Path, *options: str) -> Result:
    """Run the command in a terminal of 200 columns."""
    command = ["client", "audit", "show", "--state", str(state), *options]
    return CliRunner(env={"COLUMNS": "200"}).invoke(build_app(), command)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A heartbeat and a question on one day, a hello on the next."""
    for day, request in ((23, BEAT), (23, TASK), (24, HELLO)):
        Ledger(tmp_path, clock=lambda: datetime(2026, 11, day, tzinfo=UTC)).record(*request)  # noqa: B023
    return tmp_path


def test_what_was_sent_is_summed_up_by_kind(state: Path) -> None:
    """A daemon of ten minutes has two hundred entries, most of them heartbeats."""
    summed = [line.split() for line in shown(state).stdout.splitlines()]
    assert [words[1::2] for words in summed if len(words) == 7] == [
        ["what", "requests", "bytes"],
        ["heartbeat", "1", "11"],
        ["hello", "1", "2"],
        ["question", "1", "0"],
    ]


def test_what_had_a_body_is_listed_with_it_if_asked_for(state: Path) -> None:
    """In order; requests without a body only ask."""
    beat, content, hello = shown(state, "--content").stdout.splitlines()[:3]
    assert "heartbeat" in beat and content == '    {"step": 1}' and "hello" in hello


def test_a_copy_of_a_ledger_is_verified_by_its_folder(state: Path, tmp_path: Path) -> None:
    """An auditor needs nothing else, and compares the last entry's hash with an earlier one.

    A signature beside it is not checked any more, which is said.
    """
    copy = Path(shutil.copytree(ledger_folder(state), tmp_path / "copy"))
    verify = ["client", "audit", "verify", str(copy)]
    intact = CliRunner().invoke(build_app(), verify)
    assert intact.exit_code == 0 and "3 entries, all intact" in intact.stdout
    assert list(entries(copy))[-1].hash in intact.stdout
    assert not intact.stderr
    (copy / "SHA256SUMS.sig").touch()  # as in a report of an earlier version
    assert "signature was not checked" in CliRunner().invoke(build_app(), verify).stderr
    day = copy / "2026-11-23.jsonl"
    day.write_bytes(day.read_bytes().replace(b'"step":1', b'"step":2'))
    changed = CliRunner().invoke(build_app(), verify)
    assert changed.exit_code == 1 and "2026-11-23.jsonl, line 1: changed" in changed.stderr
    assert CliRunner().invoke(build_app(), [*verify[:3], str(tmp_path / "none")]).exit_code == 1
