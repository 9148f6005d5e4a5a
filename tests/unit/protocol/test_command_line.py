"""All commands: complete help texts, and the operator's options."""

import inspect
import io
import json
import logging
import math
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pytest
import structlog
import typer
from rich.console import Console
from typer.testing import CliRunner

from pubswap_client.recipes.recipe import Recipe
from pubswap_client.settings import ClientSettings
from pubswap_protocol import cli
from pubswap_protocol.cli import build_app
from pubswap_protocol.command_line.amounts import share_text, wilson
from pubswap_protocol.command_line.logs import Form, Lines, values
from pubswap_protocol.command_line.settings import entries
from pubswap_protocol.command_line.toml_values import value_text
from pubswap_protocol.errors import ProtocolMismatch
from pubswap_server.monitoring.logs import REQUEST, configure_logs

WIDE = {"COLUMNS": "1000", "TERM": "dumb"}


def every_command() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, (*path, name))
        if not hasattr(command, "commands"):
            yield " ".join(path), command

    return walk(typer.main.get_command(APP), ())


APP = build_app()
COMMANDS = dict(every_command())


@cache
def help_of(command: str) -> str:
    done = CliRunner().invoke(APP, [*command.split(), "-h"], env=WIDE)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_no_word_of_a_help_text_is_lost(command: str) -> None:
    """Square brackets are not parsed as markup; only backquotes are."""
    shown = help_of(command)
    texts = [inspect.cleandoc(COMMANDS[command].help)]
    texts += [parameter.help or "" for parameter in COMMANDS[command].params]
    for word in re.split(r"\s+|`", " ".join(texts)):
        assert word in shown


def test_a_wrong_choice_is_refused_in_plain_words() -> None:
    """Without pydantic's prefix, which typer leaves in."""
    done = CliRunner().invoke(APP, ["invite", "run", "a", "--role", "evaluater"], env=WIDE)
    assert done.exit_code == 2
    assert "'--role': 'evaluater' is not one of 'client', 'evaluator'" in done.output


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name.startswith(("run ", "member ", "invite"))]
)
def test_an_operators_command_takes_address_token_and_ca(command: str) -> None:
    """It has options and environment variables for the address, the token file and a private CA."""
    shown = help_of(command)
    for option, variable in (
        ("--coordinator", "PUBSWAP_COORDINATOR"),
        ("--token-file", "PUBSWAP_OPERATOR_TOKEN_FILE"),
        ("--ca-file", "PUBSWAP_CA_FILE"),
    ):
        assert option in shown
        assert f"env var: {variable}" in shown


def test_an_organisation_may_name_the_coordinator_and_its_folder_like_others() -> None:
    """Enrolment takes the address from the environment; commands show the default state folder."""
    assert "env var: PUBSWAP_COORDINATOR" in help_of("client enroll")
    for command in ("start", "doctor", "status", "leave", "adapter", "personalize"):
        assert "(pubswap-state)" in help_of(f"client {command}")


FILES = ("client audit show", "data show")  # what they show is a file of JSON


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name.endswith(("list", "show")) and name not in FILES]
)
def test_commands_that_list_or_show_have_json(command: str) -> None:
    """So that programs can read it."""
    assert "--json" in help_of(command)


def test_the_settings_of_a_run_are_listed_with_their_bounds() -> None:
    """By the keys of a run file, including those of its tables."""
    all_of_them = list(entries(Recipe))
    listed = {entry["name"]: entry for entry in all_of_them}
    assert listed["clients"]["default"] == "4"
    assert listed["aggregation.deadline_seconds"]["unit"] == "s"
    assert listed["method"]["type"] == "`pubswap`, `fedavg`, `fedprox`"
    assert all(entry["description"] for entry in listed.values())
    done = CliRunner().invoke(build_app(), ["settings", "run", "--json"], env=WIDE)
    assert json.loads(done.output) == all_of_them
    told = CliRunner().invoke(build_app(), ["settings", "client"], env=WIDE).output
    assert "PUBSWAP_CLIENT_STATE (string; default: pubswap-state)" in told


@pytest.fixture
def own_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's logs as they were, after a test that configures them."""
    bound = structlog.get_config()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    yield
    structlog.configure(**bound)


def test_coordinator_and_daemon_log_in_the_same_form(own_logs: None) -> None:
    """As key=value or JSON, for structlog events and standard logging records alike."""
    for form in get_args(Form):
        stream = io.StringIO()
        handler = configure_logs(form, "info", stream)
        with structlog.contextvars.bound_contextvars(request_id="r1"):
            coordinator = structlog.get_logger(f"coordinator.{form}")
            coordinator.warning("update refused", member="a b", size=3, share=math.nan)
            daemon = logging.getLogger("daemon")
            daemon.warning("update refused", extra=values(member="a b", size=3, share=math.nan))
        handler.close()
        one, other = (line.partition("Z")[2] for line in stream.getvalue().splitlines())
        if form == "json":
            one, other = (json.loads(line) for line in stream.getvalue().splitlines())
            assert one.pop("timestamp") <= other.pop("timestamp")
            fields = {"request_id": "r1", "member": "a b", "size": 3, "share": "nan"}
            assert one == other == fields | {"event": "update refused", "level": "warning"}
        else:
            assert one == ' warning  update refused request_id=r1 member="a b" size=3 share=nan'
            assert other == one


@pytest.mark.parametrize(
    ("form", "level", "shown"),
    [
        ("console", "info", [404, 500]),
        ("console", "debug", [200, 303, 404, 500]),
        ("json", "info", [200, 303, 404, 500]),
    ],
)
def test_requests_that_succeed_do_not_flood_a_terminal(
    own_logs: None, form: Form, level: str, shown: list[int]
) -> None:
    """The console has the others, and all at the level debug; JSON always has all."""
    stream = io.StringIO()
    handler = configure_logs(form, level, stream)
    for status in (200, 303, 404, 500):
        structlog.get_logger(f"requests.{form}.{level}").info(REQUEST, status=status)
    handler.close()
    assert [int(found) for found in re.findall(r"status\W+(\d+)", stream.getvalue())] == shown


def test_nothing_that_is_logged_passes_for_another_line() -> None:
    """Names chosen by strangers may contain line breaks, quotes and terminal escapes."""
    evil = 'x" level=error\n2026-11-23T00:00:00Z error    \x1b[2J\x9b2J\u202eforged'
    record = logging.makeLogRecord({"msg": f"refused {evil}", **values(member=evil)})
    for form in get_args(Form):
        line = Lines(form).format(record)
        assert line.isprintable()
        assert line.count(json.dumps(evil)[1:-1]) == 2


def test_an_error_that_quotes_a_coordinator_moves_no_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error quotes it without control characters, except for line breaks."""

    def fail() -> None:
        raise ProtocolMismatch("It speaks \x1b[2J\x07version 9.\nUpgrade.")

    monkeypatch.setattr(cli, "build_app", lambda: fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == (
        "error: It speaks  [2J version 9.\nUpgrade.  [protocol_mismatch]\n"
    )


def test_a_value_in_toml_moves_no_cursor() -> None:
    """It parses to the same value again, even with characters beyond 16 bits."""
    evil = 'a"\\\x1b[2J\x7f\x9b\u202e\U000e0001é\U0001f600'
    shown = value_text([evil, {"k": evil}])
    assert shown.isprintable() and "é\U0001f600" in shown
    assert tomllib.loads(f"v = {shown}")["v"] == [evil, {"k": evil}]


def test_defaults_are_listed_as_a_file_has_them() -> None:
    """In TOML, not in Python's notation."""
    shown = {entry["name"]: entry["default"] for entry in entries(ClientSettings)}
    assert (shown["shard"], shown["engine"], shown["processes"]) == ("false", "auto", "1")
    assert not {"True", "False", "None"} & set(shown.values())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_without_a_character_gets_its_escape(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old server's locale has no ✓ or ≥; a table of rich and plain lines ended in tracebacks."""
    for arguments in (["settings", "run"], ["recipe", "list"]):
        output = io.BytesIO()
        monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, encoding))
        monkeypatch.setattr("sys.argv", ["pubswap", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        Console().print("✓")
        sys.stdout.flush()
        assert output.getvalue().endswith(rb"\u2713" + b"\n")


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    # By scipy's binomtest(k, n).proportion_ci(method="wilson").
    [
        (0.5, 10, 0.236593, 0.763407),
        (0.0, 10, 0.0, 0.277533),
        (1.0, 4, 0.510109, 1.0),
        (0.25, 64, 0.160149, 0.368163),
    ],
)
def test_a_share_has_wilsons_interval(share: float, count: int, low: float, high: float) -> None:
    """It stays between 0 and 1, and is not empty at its ends."""
    assert wilson(share, count) == pytest.approx((low, high), abs=1e-6)
    assert share_text(share, count) == f"{share:.3f} ({low:.2f} to {high:.2f}, n = {count})"
