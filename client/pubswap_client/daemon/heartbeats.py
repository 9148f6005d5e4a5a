"""Report a round's progress to the coordinator in a thread, so no outage delays training.

It is repeated during long steps: a member that was not heard from does not count for a quorum.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from pubswap_client.daemon.reporters import Reporter, StepReport
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import Progress

# Longest wait for a heartbeat's answer, during the next step, so that an answer of "cancelled" ends
# the round at once. A coordinator that has not answered is not waited for until it does.
GRACE_SECONDS = 0.2
REPEAT_SECONDS = 30.0
_OF_A_STEP = ("reward", "loss", "kl", "response_tokens", "tokens_per_second")
# A process keeps memory that earlier steps needed, so a public step's figure tells of private ones.
_FIGURES = (*_OF_A_STEP, "memory_bytes")


class Heartbeats(Reporter):
    """A context manager whose thread sends the newest progress, and repeats it."""

    def __init__(
        self, send: Callable[[Progress], None], begun: Progress, private: bool = False
    ) -> None:
        """`begun` is the progress so far.

        With `private`, report no figure that depends on private steps.
        """
        self._send = send
        self._private = private
        self.newest = begun
        self._box: queue.Queue[Progress | None] = queue.Queue(maxsize=1)
        self._answered = threading.Event()
        self._answered.set()
        self._refusal: PubSwapError | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._work, name="heartbeats", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._put(None)

    def step(self, report: StepReport) -> None:
        """Send this progress, replacing any that is not sent yet.

        Raises the coordinator's refusal of a heartbeat, unless it is retryable.
        """
        answers = self._answered.is_set()
        self._answered.clear()
        self.newest = self._progress(report)
        self._put(self.newest)
        if answers:
            self._answered.wait(GRACE_SECONDS)
        if self._refusal is not None:
            raise self._refusal

    def resumed(self, step: int) -> None:
        """Continue after this step; what comes next is sent with it."""
        self.newest = self.newest.model_copy(update={"step": step})

    def holds(self, holds: int | None) -> None:
        """Send that this is held while the run is paused, see `Progress.holds`."""
        self.newest = self.newest.model_copy(update={"holds": holds})
        self._put(self.newest)

    def _progress(self, report: StepReport) -> Progress:
        names: tuple[str, ...] = _FIGURES
        if self._private:
            names = _OF_A_STEP if report.public else ()
        figures: dict[str, Any] = {name: getattr(report.metrics, name) for name in names}
        return Progress(round=report.round, step=report.step, steps=report.steps, **figures)

    def _put(self, progress: Progress | None) -> None:
        with suppress(queue.Empty):
            self._box.get_nowait()
        self._box.put(progress)

    def _work(self) -> None:
        while (progress := self._next()) is not None:
            try:
                self._send(progress)
                self._refusal = None  # a policy may have refused an earlier one, at another hour
            except PubSwapError as error:
                if error.retryable:
                    continue
                self._refusal = error
            except RuntimeError:  # the client was closed: the round is over
                return
            self._answered.set()

    def _next(self) -> Progress | None:
        """The newest progress, once there is one or the last was sent some time ago."""
        try:
            return self._box.get(timeout=REPEAT_SECONDS)
        except queue.Empty:
            return self.newest
