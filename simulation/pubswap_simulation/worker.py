"""A process of a sweep that carries out one order after another.

Orders come on stdin and reports go to stdout, as lines of JSON. Whatever else is printed, by the
process's death too, goes to the log of the run that is under way.
"""

import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import structlog
from pydantic import BaseModel, ConfigDict

from pubswap_client.distributed.launch import die_with_the_leader
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.verifiers import VerifierPool
from pubswap_simulation.order import RunSpec

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


class JobReport(BaseModel):
    """How far the job is; the last one says that it is done, or why it has failed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = 0
    score: float | None = None
    done: bool = False
    failed: str | None = None


def main() -> None:
    """Do what is ordered until there are no more orders; one that fails is the last."""
    die_with_the_leader()
    # A descriptor that no child inherits: the parent must see it closed when this process ends.
    reports = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")

    def tell(report: JobReport) -> None:
        reports.write(report.model_dump_json() + "\n")

    log_to_stderr()
    with ExitStack() as stack:
        verifiers: VerifierPool | None = None  # one for all orders, whose settings are the same
        for line in sys.stdin:
            order = RunSpec.model_validate_json(line)
            with open_log(order.folder) as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            verifiers = verifiers or stack.enter_context(order.verifiers())
            last = _carried_out(order, verifiers, tell)
            gc.collect()  # a run's model is part of cycles, and takes the next one's room
            tell(last)
            if last.failed is not None:
                return


def _carried_out(
    order: RunSpec, verifiers: VerifierPool, tell: Callable[[JobReport], None]
) -> JobReport:
    try:
        order.carry_out(lambda steps, score: tell(JobReport(steps=steps, score=score)), verifiers)
    except Exception as error:
        traceback.print_exc()
        return JobReport(failed=error.detail if isinstance(error, PubSwapError) else repr(error))
    return JobReport(done=True)


if __name__ == "__main__":
    main()
