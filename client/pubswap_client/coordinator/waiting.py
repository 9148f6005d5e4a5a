"""What a member waits for, in its log: once, and again when it is something else."""

import logging

log = logging.getLogger(__name__)


class Waiting:
    """One wait, however often the coordinator is asked meanwhile."""

    def __init__(self) -> None:
        self._last: str | None = None

    def log(self, reason: str | None) -> None:
        """Say what is waited for, as the coordinator words it; None is not worth a line."""
        if reason is not None and reason != self._last:
            log.info("Waiting for %s.", reason)
        self._last = reason
