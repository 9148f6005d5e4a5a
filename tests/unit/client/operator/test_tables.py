"""Runs and members as tables on a terminal."""

import io
import sys

import pytest
from rich.console import Console
from rich.table import Table

from pubswap_client.command_line import table_console
from pubswap_client.consent.rules import Code
from pubswap_client.demo.demos import MODEL
from pubswap_client.operator.tables import members_table, rounds_table, runs_table
from pubswap_protocol.messages import (
    Away,
    MemberView,
    Progress,
    Role,
    RoundSummary,
    RunState,
    RunView,
    Traffic,
)
from pubswap_protocol.model import model_card
from support.coordinator.coordinator import merged


def test_a_narrow_terminal_cuts_nothing_of_why_a_member_is_away() -> None:
    """The code wraps over several lines, because people search for it."""
    for code in Code:
        away = Away(code=code, detail="It is away.")
        member = MemberView(name="hospital-a", role=Role.CLIENT, active=True, away=away)
        shown = io.StringIO()
        Console(width=80, file=shown).print(members_table([member]))
        cells = [
            line.split("│")[3].strip() for line in shown.getvalue().splitlines() if "│" in line
        ]
        assert "".join(cells).replace(" ", "") == f"away:{code}"


def test_what_a_member_holds_in_a_pause_is_shown() -> None:
    """In place of its being active."""
    for holds, words in ((6, "holds its responses to public step 6"), (0, "holds its update")):
        progress = Progress(round=1, step=5, steps=8, holds=holds)
        member = MemberView(name="a", role=Role.CLIENT, active=True, progress=progress)
        shown = io.StringIO()
        Console(width=200, file=shown).print(members_table([member]))
        assert f"│ {words}" in shown.getvalue()


def test_a_long_name_leaves_the_others_room_and_is_whole() -> None:
    """It wraps and leaves room for other columns; a name of usual length stays on one line."""
    for name, lines in (("a" * 63, 4), ("hospital-a", 1)):
        run = RunView.model_construct(
            id="0f" * 8,
            name=name,
            state=RunState.TRAINING,
            paused=False,
            round=3,
            settings=merged({}),
            model=model_card(MODEL, merged({}).lora, "org/model", None),
            latest=None,
        )
        shown = io.StringIO()
        Console(width=80, file=shown).print(runs_table([run]))
        assert "0f" * 8 in shown.getvalue(), "an id goes into other commands"
        rows = [line.split("│") for line in shown.getvalue().splitlines() if "│" in line]
        names = [row[2].strip() for row in rows]
        assert "".join(names) == name
        assert sum(map(bool, names)) == lines
        assert "".join(row[3].strip() for row in rows) == "training"


def test_a_narrow_terminal_cuts_no_figure() -> None:
    """Of members and rounds, with a member whose name is long and figures of a large run."""
    progress = Progress(round=100, step=1000, steps=1000, reward=0.125, tokens_per_second=1e6)
    name = "hospital-of-the-university"
    member = MemberView(
        name=name, role=Role.EVALUATOR, active=True, unseen_seconds=3601, progress=progress
    )
    traffic = Traffic(adapters_up=123_456_789_012, adapters_down=123_456_789_012)
    round_ = RoundSummary(round=100, updates=1000, traffic=traffic)
    for table in (members_table([member]), rounds_table([round_])):
        shown = io.StringIO()
        Console(width=60, file=shown).print(table)
        assert "…" not in shown.getvalue()


def test_a_pipe_gets_each_row_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich folds at 80 columns where there is no terminal; COLUMNS says otherwise."""
    table = Table("name")
    table.add_row("x" * 200)
    for columns, whole in ((None, True), ("80", False)):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns:
            monkeypatch.setenv("COLUMNS", columns)
        written = io.StringIO()
        monkeypatch.setattr(sys, "stdout", written)
        table_console().print(table)
        assert ("x" * 200 in written.getvalue()) is whole
