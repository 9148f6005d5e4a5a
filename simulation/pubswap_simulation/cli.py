"""The researcher's commands; nothing heavy is imported before one runs."""

import typer

from pubswap_simulation.commands import simulate


def register(app: typer.Typer) -> None:
    """Add `simulate` and `report`."""
    app.command("simulate")(simulate)
