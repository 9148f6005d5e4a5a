"""The process of one run of a sweep.

The run is its argument. It writes its reports to stdout as lines of JSON; all other output goes to
stderr, which is the run's log.
"""

import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO

from pubswap_client.distributed.launch import die_with_the_leader
from pubswap_protocol.command_line.logs import values
from pubswap_protocol.errors import PubSwapError
from pubswap_server.monitoring.logs import configure_logs
from pubswap_server.server import allow_open_files
from pubswap_simulation.job import JobReport, RunSpec
from pubswap_simulation.simulation import simulate

LOG = "run.log"


def open_log(folder: Path) -> TextIO:
    """Open a run's log for appending."""
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / LOG).open("a", encoding="utf-8", buffering=1)


def log_to(stream: TextIO) -> None:
    """Write all log lines to `stream`, except the coordinator's line for each request."""
    configure_logs("console", "info", stream).addFilter(_with_thread)
    logging.getLogger("pubswap_server").setLevel(logging.WARNING)


def _with_thread(record: logging.LogRecord) -> bool:
    """Name the daemon whose line this is."""
    vars(record).update(values(thread=record.threadName, **getattr(record, "values", {})))
    return True


def main() -> None:
    """Carry out one run; exit status 1 if it fails."""
    die_with_the_leader()
    allow_open_files()  # the coordinator is in this process
    # A descriptor that no child inherits: the parent must see it closed when this process ends.
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as reports:
        os.dup2(2, 1)
        log_to(sys.stderr)

        def report(progress: JobReport) -> None:
            reports.write(progress.model_dump_json() + "\n")

        try:
            spec = RunSpec.read(sys.argv[1])
            simulate(spec, report)
        except Exception as error:
            traceback.print_exc()
            reason = error.detail if isinstance(error, PubSwapError) else repr(error)
            report(JobReport(failed=reason))
            sys.exit(1)


if __name__ == "__main__":
    main()
