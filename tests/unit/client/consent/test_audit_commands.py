"""`pubswap client audit`: the entries that `show` lists, and the report that `verify` reads."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pubswap_client.consent.ledger import Ledger
from pubswap_protocol import paths
from pubswap_protocol.cli import build_app
from support.forked import pubswap

BEAT = ("POST", paths.HEARTBEAT.format(run="r"), "application/json", [b'{"step": 1}'])
HELLO = ("POST", paths.HELLO.format(run="r"), "application/json", [b"{}"])
TASK = ("GET", paths.TASK.format(run="r"), "", [])


def shown(state: Path, *options: str) -> Result:
    """Run the command in a terminal of 200 columns."""
    command = ["client", "audit", "show", "--state", str(state), *options]
    return CliRunner(env={"COLUMNS": "200"}).invoke(build_app(), command)


def kinds(state: Path, *options: str) -> list[str]:
    """The kinds of the entries that the command lists."""
    lines = shown(state, "--json", *options).stdout.splitlines()
    return [json.loads(line)["kind"] for line in lines]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A heartbeat and a question on one day, a hello on the next."""
    for day, request in ((23, BEAT), (23, TASK), (24, HELLO)):
        Ledger(tmp_path, clock=lambda: datetime(2026, 11, day, tzinfo=UTC)).record(*request)  # noqa: B023
    return tmp_path


def test_what_had_a_body_is_listed_and_questions_if_asked_for(state: Path) -> None:
    """Kinds may be combined, and a day chosen."""
    assert kinds(state) == ["heartbeat", "hello"]
    assert kinds(state, "--kind", "question") == ["question"]
    assert kinds(state, "--kind", "question", "--kind", "hello") == ["question", "hello"]
    assert kinds(state, "--day", "2026-11-23") == ["heartbeat"]
    assert kinds(state, "--day", "2026-11-25") == []
    beat, content, hello = shown(state, "--content").stdout.splitlines()[:3]
    assert "heartbeat" in beat and content == '    {"step": 1}' and "hello" in hello


def test_the_sums_come_first_and_the_entries_if_asked_for(state: Path) -> None:
    """A daemon of ten minutes has two hundred entries, most of them heartbeats."""
    summed = [line.split() for line in shown(state).stdout.splitlines()]
    assert [words[1::2] for words in summed if len(words) == 7] == [
        ["what", "requests", "bytes"],
        ["heartbeat", "1", "11"],
        ["hello", "1", "2"],
        ["question", "1", "0"],
    ]
    assert "heartbeat" not in shown(state, "--day", "2026-11-24").stdout
    beat, hello = shown(state, "--all").stdout.splitlines()
    assert "heartbeat" in beat and "hello" in hello


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--kind", "response", "'response' is no kind of request; the kinds are adapter, away, en"),
        ("--day", "23.11.2026", "'23.11.2026' does not match the format"),
        ("--day", "2026-11-31", "'2026-11-31' does not match the format"),
    ],
)
def test_a_mistyped_kind_or_day_is_refused(state: Path, option: str, value: str, said: str) -> None:
    """An empty list would say that nothing of it was sent."""
    done = shown(state, option, value)
    assert done.exit_code
    assert said in f"{done.output} {done.exception}"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_a_report_is_verified_as_a_report_only(tmp_path: Path) -> None:
    """By its own command, with the organisation's key; as an export it is refused."""
    state, out = tmp_path / "state", tmp_path / "report"
    Ledger(state).record("POST", "/v1/runs/r/heartbeat", "application/json", [b"{}"])
    exported = pubswap("client", "audit", "export", "--state", str(state), "--out", str(out))
    key = str(state / "audit-key.pub")
    assert f"audit verify {out} --key audit-key.pub" in exported.stdout
    verify = ["client", "audit", "verify", str(out), "--key", key]
    assert "1 entry, all intact" in pubswap(*verify).stdout
    as_export = pubswap("export", "verify", str(out), "--key", key)
    assert as_export.returncode == 1 and "not signed as pubswap-export" in as_export.stderr
    with (out / "report.md").open("a") as file:
        file.write("Nothing else was sent.")
    changed = pubswap(*verify)
    assert (changed.returncode, changed.stderr.strip()) == (1, "changed: report.md")
    assert pubswap("client", "audit", "verify", "--key", key).returncode == 1
