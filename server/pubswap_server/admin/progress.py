"""Progress of a long command, on stderr."""

import sys
from contextlib import ExitStack
from typing import Any, Self

import typer


class Bar:
    """A bar with a label; without one nothing is shown, and off a terminal the label alone."""

    def __init__(self, label: str | None = None) -> None:
        self._label = label
        self._shown = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.close()

    def begin(self, steps: int) -> None:
        """Count so many steps from now on; a command may begin anew."""
        self._shown.close()
        if self._label is not None:
            bar = typer.progressbar(length=steps, label=self._label, file=sys.stderr)
            self._bar = self._shown.enter_context(bar)

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update(1)
