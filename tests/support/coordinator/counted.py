"""Count the database statements and rows that a piece of work needs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

from pubswap_server.database.tables import Base


class Counted:
    """The statements sent, and the number of rows that became objects."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.rows = 0


@contextmanager
def counted(engine: Engine) -> Iterator[Counted]:
    """Count this thread's use of the database within the block."""
    counts = Counted()

    mine = threading.get_ident()

    def statement(connection: Any, cursor: Any, text: str, *_: Any) -> None:
        if threading.get_ident() == mine:
            counts.statements.append(text)

    def row(*_: Any) -> None:
        if threading.get_ident() == mine:
            counts.rows += 1

    event.listen(engine, "before_cursor_execute", statement)
    event.listen(Base, "load", row, propagate=True)
    try:
        yield counts
    finally:
        event.remove(engine, "before_cursor_execute", statement)
        event.remove(Base, "load", row)
