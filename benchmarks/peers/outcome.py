"""The outcome of a peer's run."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class PeerOutcome:
    """Seconds of a peer's rounds: a warm-up, and those after it that finished in time.

    `unfinished` is how long a round had been under way when time was up, and `checked` the largest
    difference of the peer's mean from numpy's.
    """

    warm_up: float | None
    rounds: list[float]
    unfinished: float | None
    checked: float | None
    bytes_each_way: int | None
    lost_replies: int = 0

    @property
    def seconds(self) -> float | None:
        """The median round, or if none finished in time, the longest wait.

        In the second case a round takes at least that long or, if only the warm-up finished, about
        that long.
        """
        if self.rounds:
            return median(self.rounds)
        waits = [wait for wait in (self.warm_up, self.unfinished) if wait is not None]
        return max(waits, default=None)

    @property
    def is_lower_bound(self) -> bool:
        """Whether no round after the warm-up finished in time."""
        return not self.rounds

    def entry(self) -> dict[str, Any]:
        """The outcome as an entry of the details."""
        return asdict(self) | {"seconds": self.seconds, "is_lower_bound": self.is_lower_bound}


def entries(log: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; none if there is no file."""
    if not log.exists():
        return []
    text = log.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
