"""How far a long command has come."""

import sys
from contextlib import ExitStack
from typing import Any, Protocol, Self

import typer


class Progress(Protocol):
    """Is told of steps; a command may begin anew."""

    def begin(self, steps: int) -> None:
        """There will be so many."""

    def step(self) -> None:
        """One is done."""


class Silent:
    """Tells nobody."""

    def begin(self, steps: int) -> None:
        """See Progress."""

    def step(self) -> None:
        """See Progress."""


class Bar:
    """A bar on stderr; where that is no terminal, only its label."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = ExitStack()
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._shown.close()

    def begin(self, steps: int) -> None:
        """See Progress."""
        self._shown.close()
        bar = typer.progressbar(length=steps, label=self._label, file=sys.stderr)
        self._bar = self._shown.enter_context(bar)

    def step(self) -> None:
        """See Progress."""
        if self._bar is not None:
            self._bar.update(1)
