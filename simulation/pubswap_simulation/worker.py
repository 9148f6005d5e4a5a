"""A process of a sweep that simulates one job after another.

Orders come on stdin and reports go to stdout, as lines of JSON. Whatever else is printed, by the
process's death too, goes to the log of the run that is under way.
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pubswap_client.followers import die_with_the_leader
from pubswap_protocol.errors import PubSwapError
from pubswap_simulation.job import Job
from pubswap_simulation.logs import log_to_stderr, open_log


class Order(BaseModel):
    """A job, and how to do it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Job
    folder: Path
    config: Path | None = None
    options: dict[str, Any] = {}
    keep_work: bool = False
    keep_adapters: bool = False


class Report(BaseModel):
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

    def report(report: Report) -> None:
        reports.write(report.model_dump_json() + "\n")

    log_to_stderr()
    for line in sys.stdin:
        order = Order.model_validate_json(line)
        with open_log(order.folder) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        try:
            _carry_out(order, report)
        except Exception as error:
            traceback.print_exc()
            detail = error.detail if isinstance(error, PubSwapError) else repr(error)
            report(Report(failed=detail))
            return
        report(Report(done=True))


def _carry_out(order: Order, report: Any) -> None:
    from pubswap_client.settings import load_settings
    from pubswap_simulation.simulation import simulate

    simulate(
        order.job,
        order.folder,
        load_settings(order.config, **order.options),
        lambda steps, score: report(Report(steps=steps, score=score)),
        keep_work=order.keep_work,
        keep_adapters=order.keep_adapters,
    )


if __name__ == "__main__":
    main()
