"""Results of simulated runs: one `result.json` in each run's own folder.

STORE/runs/KEY/result.json     a complete run; there is none before its end
STORE/runs/KEY/                there from the moment that a sweep plans the run
STORE/runs/KEY/work/           the coordinator's and the members' state, while it is under way
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pubswap_client.daemon.reporters import Reporter, StepReport
from pubswap_client.state.files import write_whole
from pubswap_client.state.journal import Journal
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.messages import Evaluation, WholeRun
from pubswap_protocol.schedule import update_order
from pubswap_protocol.settings import RunSettings

RUNS = "runs"
RESULT = "result.json"

Value = bool | int | float | str
Members = Literal["federated", "alone", "pooled", "with-public"]


class Result(BaseModel):
    """One complete run, with everything that a report draws on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    recipe: str = Field(description="The recipe's name.")
    setting: dict[str, Value] = Field(
        description="The axes of the sweep by dotted key, and what this run has on each; no seed."
    )
    seed: int
    members: Members = Field(
        default="federated",
        description="federated: N clients. alone: one client with its own private set. pooled: one "
        "client with all private sets, the centralised reference. with-public: N clients, each "
        "with the public set beside its own.",
    )
    client: str | None = Field(default=None, description="Whose private set `alone` trains on.")
    run: WholeRun = Field(
        description="Settings, and of each round evaluation, drift, exchanges and traffic."
    )
    rewards: dict[str, list[float]] = Field(
        description="Mean reward of own responses at each local step of the whole run, by client."
    )
    seconds: float = Field(ge=0)
    code: str | None = Field(
        default=None,
        description="The commit of the code, -dirty if it had changes; None if it is installed.",
    )

    @property
    def evaluations(self) -> list[Evaluation]:
        """Those of round 0 (the base model), 1, ..."""
        return [summary.evaluation for summary in self.run.rounds if summary.evaluation]

    @property
    def base(self) -> float:
        """pass@1 of the base model."""
        return self.evaluations[0].pass_at_1

    @property
    def final(self) -> float:
        """pass@1 of the last round's adapter."""
        return self.evaluations[-1].pass_at_1

    @property
    def best(self) -> float:
        """pass@1 of the best round's adapter; the base model does not count."""
        return max(evaluation.pass_at_1 for evaluation in self.evaluations[1:])


def read_results(store: Path) -> Iterator[Result]:
    """All complete runs of a store, in the order of their folders' names.

    Raises InvalidSettings for a file that is none.
    """
    for path in sorted((store / RUNS).glob(f"*/{RESULT}")):
        try:
            yield Result.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise InvalidSettings(f"{path} is no result: {first_fault(error)}") from None


def unfinished(store: Path) -> list[str]:
    """The runs that were planned or begun and have no result, by their folders' names."""
    folders = sorted(path for path in (store / RUNS).glob("*") if path.is_dir())
    return [folder.name for folder in folders if not (folder / RESULT).exists()]


class RewardLog(Reporter):
    """One line [step, reward] for each step of the whole run.

    A step that was made but not reported before a kill is in the checkpoint. One that is made
    again after a kill is equal to the first.
    """

    def __init__(self, path: Path, on_step: Callable[[], None]) -> None:
        """Go on with the file at `path`; `on_step` is called after each step."""
        self._path = path
        self._on_step = on_step
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        # A line that a kill has torn must not be the beginning of the next one.
        lines = [line for line in lines if line.endswith("\n")]
        self._rewards: dict[int, float] = dict(map(json.loads, lines))
        write_whole(path, "".join(lines).encode())

    def catch_up(self, journal: Journal, settings: RunSettings) -> None:
        """Add the steps of the last checkpoint that are not in the file."""
        checkpoint = journal.checkpoint()
        if checkpoint is not None:
            # A checkpoint has them in the order of their updates, which a pipelined run changes.
            order = update_order(settings)
            for step, metrics in zip(order, checkpoint.steps, strict=False):
                self._add((checkpoint.round - 1) * settings.local_steps + step, metrics.reward)

    def step(self, report: StepReport) -> None:
        """Keep a step's reward."""
        self._add(report.overall, report.metrics.reward)
        self._on_step()

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return len(self._rewards)

    def rewards(self) -> list[float]:
        """Those of steps 1, 2, ... of the whole run."""
        return [self._rewards[step] for step in sorted(self._rewards)]

    def _add(self, step: int, reward: float) -> None:
        if step in self._rewards:
            return
        self._rewards[step] = reward
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([step, reward]) + "\n")
