"""Runs and members as tables on a terminal."""

import io

from rich.console import Console

from pubswap_client.consent.rules import Code
from pubswap_client.operator.tables import members_table
from pubswap_protocol.messages import Away, MemberView, Role


def test_a_narrow_terminal_cuts_nothing_of_why_a_member_is_away() -> None:
    """It goes over several lines: the code is what one searches for."""
    for code in Code:
        away = Away(code=code, detail="It is away.")
        member = MemberView(name="hospital-a", role=Role.CLIENT, active=True, away=away)
        shown = io.StringIO()
        Console(width=80, file=shown).print(members_table([member]))
        cells = [
            line.split("│")[3].strip() for line in shown.getvalue().splitlines() if "│" in line
        ]
        assert "".join(cells).replace(" ", "") == f"away:{code}"
