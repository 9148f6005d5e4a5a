"""The end of a batch job: a process that ends by itself before a scheduler ends it."""

import os
import signal
import time

from pubswap_client.daemon.reporters import ASKING, Reporter, StepReport


class Deadline(Reporter):
    """Ends the process before its time is up, once a step is kept and another may not fit.

    A step is taken to last as long as the longest of its round; after a round's last, the adapter
    is handed in first. `until_stopped` ends what still goes on when the time is up: a wait, or a
    step that took longer.
    """

    def __init__(self, end: float) -> None:
        """`end` is a time of time.monotonic()."""
        self._end = end
        self._over = False

    def step(self, report: StepReport) -> None:
        longest = max(metrics.seconds for metrics in report.made)
        self._over = time.monotonic() + longest > self._end
        if self._over and not report.last:
            os.kill(os.getpid(), signal.SIGALRM)

    def doing(self, what: str) -> None:
        """What follows a round's last step ends with the question for more work."""
        if self._over and what == ASKING:
            os.kill(os.getpid(), signal.SIGALRM)
