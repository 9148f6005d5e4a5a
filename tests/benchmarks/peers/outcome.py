"""What a peer's run gave."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class PeerOutcome:
    """Seconds of a peer's rounds: a warm-up, and those after it that were finished in time.

    `unfinished` is how long a round had been under way when the time was up, and `checked` the
    largest difference of the mean that was made from numpy's.
    """

    warm_up: float | None
    rounds: list[float]
    unfinished: float | None
    checked: float | None
    bytes_each_way: int | None
    lost_replies: int = 0

    @property
    def seconds(self) -> float | None:
        """The median round; of a run that did not come so far, its longest wait.

        In the second case a round takes at least so long, or, when only the warm-up was finished,
        about so long.
        """
        if self.rounds:
            return median(self.rounds)
        waits = [wait for wait in (self.warm_up, self.unfinished) if wait is not None]
        return max(waits, default=None)

    @property
    def is_lower_bound(self) -> bool:
        """Whether no round but the warm-up was finished in time."""
        return not self.rounds

    def entry(self) -> dict[str, Any]:
        """For the details."""
        return asdict(self) | {"seconds": self.seconds, "is_lower_bound": self.is_lower_bound}


def entries(log: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file that are whole, none if there is no file."""
    if not log.exists():
        return []
    text = log.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
