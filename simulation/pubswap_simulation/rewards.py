"""The rewards of one client's steps, kept on disk as they come."""

import json
from collections.abc import Callable
from pathlib import Path

from pubswap_client.files import write_whole
from pubswap_client.progress import ProgressStore
from pubswap_client.reporting import StepReport
from pubswap_protocol.schedule import update_order
from pubswap_protocol.settings import RunSettings


class RewardLog:
    """A Reporter: one line [step, reward] for each step of the whole run.

    A step that was made but not reported before a kill is in the checkpoint. One that is made
    again after a kill replaces the first, which it is equal to.
    """

    def __init__(self, path: Path, told: Callable[[], None]) -> None:
        """Go on with the file at `path`; `told` is called after each step."""
        self._path = path
        self._told = told
        self._rewards = _read(path)
        # A line that a kill has torn must not be the beginning of the next one.
        lines = [_line(step, reward) for step, reward in self._rewards.items()]
        write_whole(path, "".join(lines).encode())

    def catch_up(self, progress: ProgressStore, settings: RunSettings) -> None:
        """Add the steps of the last checkpoint that are not in the file."""
        checkpoint = progress.checkpoint()
        if checkpoint is not None:
            # A checkpoint has them in the order of their updates, which a pipelined run changes.
            order = update_order(settings)
            for step, metrics in zip(order, checkpoint.steps, strict=False):
                overall = (checkpoint.round - 1) * settings.local_steps + step
                if overall not in self._rewards:
                    self._add(overall, metrics.reward)

    def doing(self, what: str) -> None:
        """Not kept."""

    def step(self, report: StepReport) -> None:
        """Keep a step's reward."""
        self._add(report.overall, report.metrics.reward)
        self._told()

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return len(self._rewards)

    def rewards(self) -> list[float]:
        """Of steps 1, 2, ... of the whole run."""
        return [self._rewards[step] for step in sorted(self._rewards)]

    def _add(self, step: int, reward: float) -> None:
        self._rewards[step] = reward
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(step, reward))


def _line(step: int, reward: float) -> str:
    return json.dumps([step, reward]) + "\n"


def _read(path: Path) -> dict[int, float]:
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return dict(json.loads(line) for line in lines if line.endswith("\n"))
