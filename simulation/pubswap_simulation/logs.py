"""Where the coordinator and the members of a simulated federation write what happens."""

import logging
import sys
from pathlib import Path
from typing import TextIO

import structlog

LOG = "run.log"


def log_to(stream: TextIO) -> None:
    """Write all log lines there, but for the coordinator's line for each request."""
    form = "%(asctime)s %(levelname)s %(threadName)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, stream=stream, force=True)
    for name in ("httpx", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )


def open_log(folder: Path) -> TextIO:
    """A run's log, to be added to."""
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / LOG).open("a", encoding="utf-8", buffering=1)


def log_to_stderr() -> None:
    """Write all log lines to this process's stderr, wherever that leads."""
    log_to(sys.stderr)
