"""A simulated client's log of its steps, which survives kills: reward and donated tokens."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pubswap_client.daemon.reporters import Reporter, StepReport
from pubswap_client.state.journal import RoundKey
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.files import write_whole
from pubswap_simulation.results import DonatedTokens


class StepLog(Reporter):
    """One line [step, reward] for each step of the whole run, in the order of their updates. A step
    with donated tokens adds their number, their mean probability and the share of them that the
    clip stops.

    A step that is repeated after a kill is equal to the first.
    """

    def __init__(self, path: Path, on_step: Callable[[], None]) -> None:
        """Continue the file at `path`; `on_step` is called after each step."""
        self._path = path
        self._on_step = on_step
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        # Drop a line that a kill has torn, or the next line would be appended to it.
        lines = [line for line in lines if line.endswith("\n")]
        self._steps: dict[int, list[float]] = {}
        self.reward: float | None = None  # of the last step
        for step, *figures in map(json.loads, lines):
            self._steps[step], self.reward = figures, figures[0]
        write_whole(path, "".join(lines).encode())

    def step(self, report: StepReport) -> None:
        """Keep a step's figures."""
        self._add(report.overall, report.metrics)
        self._on_step()

    def trained(self, key: RoundKey, steps: Sequence[StepMetrics]) -> None:
        """Add those steps of a round that were not reported before a kill."""
        for step, metrics in enumerate(steps, start=1):
            self._add((key.round - 1) * len(steps) + step, metrics)

    @property
    def steps(self) -> int:
        """Number of steps made."""
        return len(self._steps)

    def rewards(self) -> list[float]:
        """Rewards of steps 1, 2, ... of the whole run."""
        return [self._steps[step][0] for step in sorted(self._steps)]

    def donated(self) -> dict[int, list[float]]:
        """Number, mean probability and clipped share of donated tokens, by step of the run."""
        return {step: figures[1:] for step, figures in self._steps.items() if figures[1:]}

    def _add(self, step: int, metrics: StepMetrics) -> None:
        if step in self._steps:
            return
        figures: list[float] = [metrics.reward]
        if metrics.donated_tokens:
            figures += [
                metrics.donated_tokens,
                metrics.donated_probability,
                metrics.donated_clip_share,
            ]
        self._steps[step], self.reward = figures, metrics.reward
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([step, *figures]) + "\n")


def donated_by_round(logs: Iterable[StepLog], local_steps: int) -> tuple[DonatedTokens, ...]:
    """Statistics of donated tokens by round over all clients' logs; all tokens weigh the same."""
    sums: dict[int, list[float]] = {}
    for log in logs:
        for step, (tokens, probability, clip_share) in log.donated().items():
            sum_ = sums.setdefault((step - 1) // local_steps + 1, [0, 0.0, 0.0])
            for index, figure in enumerate((1, probability, clip_share)):
                sum_[index] += tokens * figure
    return tuple(
        DonatedTokens(
            round=number,
            tokens=int(tokens),
            probability=probability / tokens,
            clip_share=clipped / tokens,
        )
        for number, (tokens, probability, clipped) in sorted(sums.items())
    )
