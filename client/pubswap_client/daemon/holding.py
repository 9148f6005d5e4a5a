"""Hold what would be sent while the operator has paused the run."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pubswap_client.coordinator.retry import PollThrottle
from pubswap_client.coordinator.route import LONG_POLL_SECONDS
from pubswap_client.daemon.context import MemberContext
from pubswap_protocol.errors import RunPaused
from pubswap_protocol.messages import held_text

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Gate:
    """Lets responses and updates through unless the run is paused.

    `report` tells the operator what is held: see `Progress.holds`; None for nothing any more.
    """

    context: MemberContext
    report: Callable[[int | None], None]

    def send(self, holds: int, send: Callable[[], T]) -> T:
        """Send once the run is not paused; returns the answer. Raises RunCancelled.

        A pause that comes between question and request is no error: the coordinator refuses the
        request, and it is held, too.
        """
        throttle = PollThrottle()
        while True:
            self._wait(holds)
            try:
                return send()
            except RunPaused:
                throttle.idle()

    def _wait(self, holds: int) -> None:
        """Wait while the run is paused; logged once, however long that takes."""
        api, run = self.context.api, self.context.run.id
        if not api.paused(run):
            return
        what, throttle = held_text(holds), PollThrottle()
        log.info("The operator has paused the run: this member holds %s.", what)
        self.context.reporter.doing(f"holding {what}, because the operator has paused the run")
        self.report(holds)
        while api.paused(run, LONG_POLL_SECONDS):
            throttle.idle()
        log.info("The run goes on: this member sends %s.", what)
        self.report(None)
