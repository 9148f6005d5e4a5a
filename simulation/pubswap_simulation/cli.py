"""The researcher's commands; nothing heavy is imported before one runs."""

import typer

from pubswap_simulation.commands import simulate
from pubswap_simulation.reporting.commands import report


def register(app: typer.Typer) -> None:
    """Add `simulate` and `report`."""
    app.command("simulate")(simulate)
    app.command("report")(report)
