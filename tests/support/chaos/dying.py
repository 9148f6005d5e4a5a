"""`pubswap serve` whose conductor raises an unforeseen error once a file says so."""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

TRIGGER = "PUBSWAP_TESTS_TRIGGER"


def install() -> None:
    """Put the fault into this process's conductor: an unknown error from the database."""
    from sqlalchemy.exc import DatabaseError

    from pubswap_server.notifications import ChangeNotifier

    wait: Any = ChangeNotifier.changed_runs

    async def changed_runs(changes: ChangeNotifier, seconds: float) -> set[str]:
        with contextlib.suppress(FileNotFoundError):
            Path(os.environ[TRIGGER]).unlink()
            cause = sqlite3.DatabaseError("database disk image is malformed")
            raise DatabaseError("SELECT runs.id", None, cause)
        runs: set[str] = await wait(changes, seconds)
        return runs

    ChangeNotifier.changed_runs = changed_runs  # type: ignore[method-assign]


# Worker processes import this module again under another name.
if __name__ in {"__main__", "__mp_main__"}:
    install()
if __name__ == "__main__":
    from pubswap_protocol.cli import main

    main()
