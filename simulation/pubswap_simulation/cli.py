"""The researcher's commands; nothing heavy is imported before one runs."""

import typer


def register(app: typer.Typer) -> None:
    """Add `simulate` and `report`."""
