"""A run's outcome for one of its organisations: log lines, a summary page, and the adapter."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from pubswap_client.consent.member_client import member_client
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.operator.adapter_folder import take_adapter
from pubswap_client.organisation.report import MemberReport, held_out_text
from pubswap_client.organisation.summary import lines, page
from pubswap_client.state.membership import load_membership
from pubswap_protocol.command_line.amounts import duration_text
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import RunState, WholeRun

log = logging.getLogger(__name__)

SUMMARY, ADAPTER = "summary.html", "adapter"
LONGEST_WAIT, SHORTEST_PAUSE = 600.0, 2.0  # seconds
_THROUGH_A_RESTART = Backoff(tries=12)  # of the coordinator: about a minute and a half


def conclude(state: Path) -> None:
    """Log an ended run's outcome, and save its summary and adapter in the state folder.

    A failure is only logged as a warning, because the run has ended in any case.
    """
    stored = load_membership(state)
    member = stored.membership
    try:
        with member_client(state, stored, _THROUGH_A_RESTART) as api:
            run = evaluated(lambda: api.whole_run(member.run))
            for line in lines(run):
                log.info("%s", line)
            report = MemberReport.read(state, member)
            if report.held_out:
                log.info("pass@1 %s.", held_out_text(report.held_out))
            write_whole(state / SUMMARY, page(run, report, state).encode())
            log.info("A summary with plots: %s", state / SUMMARY)
            if run.state is RunState.FINISHED and not (state / ADAPTER).exists():
                take_adapter(api, run, "final", state / ADAPTER)
        if (state / ADAPTER).exists():
            log.info("The adapter, which peft and vLLM load: %s", state / ADAPTER)
    except (PubSwapError, OSError) as error:
        reason = error.detail if isinstance(error, PubSwapError) else str(error)
        log.warning("%s The run has ended; `pubswap client adapter` gets its adapter.", reason)


def evaluated(read_run: Callable[[], WholeRun]) -> WholeRun:
    """Wait until all rounds are evaluated, if an evaluator keeps up; returns the run.

    Waits twice the longest evaluation so far for each missing round, at most ten minutes in all.
    Asks about four times for each, because every request is an entry in the ledger. A coordinator
    that is gone meanwhile ends the wait.
    """
    began, announced, run = time.monotonic(), False, read_run()
    while True:
        took = [each.evaluation.seconds for each in run.rounds if each.evaluation is not None]
        missing = len(run.rounds) - len(took)
        if not (missing and took and run.state is RunState.FINISHED):
            return run
        longest = min(LONGEST_WAIT, 5 + 2 * missing * max(took))
        if time.monotonic() - began > longest:
            return run
        if not announced:
            log.info("Waiting for the last evaluation, %s at most.", duration_text(longest))
            announced = True
        time.sleep(max(SHORTEST_PAUSE, max(took) / 2))
        try:
            run = read_run()
        except PubSwapError as error:
            log.warning("%s The last evaluation is missing below.", error.detail)
            return run
