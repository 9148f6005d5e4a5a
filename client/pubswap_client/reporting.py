"""What a daemon tells the people who run it, and where it tells it: log lines by default."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pubswap_client.training.metrics import StepMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """A local step that was just made."""

    round: int
    rounds: int
    step: int  # from 1, in the order of the updates
    steps: int
    public: bool
    metrics: StepMetrics

    @property
    def overall(self) -> int:
        """The step's number among all of the run, from 1."""
        return (self.round - 1) * self.steps + self.step

    @property
    def kind(self) -> str:
        """Private or public, and how late its responses came, if they did."""
        late = self.metrics.staleness
        return ("public" if self.public else "private") + (f", {late} late" if late else "")


class Reporter(Protocol):
    """Somebody to tell."""

    def doing(self, what: str) -> None:
        """What happens from now on, in a few words."""
        ...

    def step(self, report: StepReport) -> None:
        """A step was made."""
        ...


def moving(reporter: Reporter, what: str) -> Callable[[int, int], None]:
    """Tells how far a transfer is, in megabytes."""

    def moved(done: int, total: int) -> None:
        reporter.doing(f"{what}, {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    reporter.doing(what)
    return moved


class LogLines:
    """One line for each step, for a log file or a journal."""

    def doing(self, what: str) -> None:
        """Not worth a line."""

    def step(self, report: StepReport) -> None:
        """The figures that show whether training goes well."""
        metrics = report.metrics
        log.info(
            "round %d step %d/%d %s  reward %.3f  zero variance %.2f  kl %.2e  clip %.3f  "
            "length %.0f  %.0f tokens/s  %.1f GiB",
            *(report.round, report.step, report.steps, report.kind),
            *(metrics.reward, metrics.zero_variance_share, metrics.kl, metrics.clip_share),
            *(metrics.response_tokens, metrics.tokens_per_second, metrics.memory_bytes / 2**30),
        )


class All:
    """Several reporters as one."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = reporters

    def doing(self, what: str) -> None:
        """Tell all of them."""
        for reporter in self._reporters:
            reporter.doing(what)

    def step(self, report: StepReport) -> None:
        """Tell all of them."""
        for reporter in self._reporters:
            reporter.step(report)
