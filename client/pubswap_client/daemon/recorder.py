"""Record the daemon's progress for other programs, in `status.json` and `history.jsonl`."""

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from pubswap_client.coordinator.connection import Connection
from pubswap_client.daemon.reporters import MEANS, Reporter, StepReport, total
from pubswap_client.state import history
from pubswap_client.state.history import RoundFigures
from pubswap_client.state.journal import RoundKey
from pubswap_client.state.status import status_so_far, write_status
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.messages import Digest, RunView
from pubswap_protocol.schedule import public_step_number, update_order


class Recorder(Reporter):
    """Writes both in the state folder; as a context manager, notes when the daemon ended."""

    def __init__(
        self,
        state: Path,
        run: RunView,
        connection: Connection,
        problems: Digest,
        prompts_per_step: int,
    ) -> None:
        """Continue the status that an earlier daemon left of the same run.

        `problems` is the digest of the problems to train on, `prompts_per_step` of these.
        """
        self._state = state
        self._problems, self._prompts_per_step = problems, prompts_per_step
        self._private = [
            public_step_number(run.settings, step) is None for step in update_order(run.settings)
        ]
        self._connection = connection
        self._previous = status_so_far(state, run)
        self._status = self._previous.model_copy(update={"doing": "starting"})
        self._lock = threading.Lock()  # steps are reported from another thread

    def __enter__(self) -> Self:
        self._note()
        return self

    def __exit__(self, *_: object) -> None:
        self._note()

    def doing(self, what: str) -> None:
        self._note(doing=what)

    def step(self, report: StepReport) -> None:
        steps = report.completed
        self._note(
            round=report.round,
            step=report.step,
            rewards=self._own_rewards(steps),
            step_seconds=sum(step.seconds + step.waited for step in steps) / len(steps),
            tokens_per_second=report.metrics.tokens_per_second,
        )

    def trained(self, key: RoundKey, steps: Sequence[StepMetrics]) -> None:
        rewards = self._own_rewards(steps)
        private = [reward for reward in rewards if reward is not None]
        means = {name: total(steps, name) / len(steps) for name in MEANS}
        figures = RoundFigures(
            run=self._status.run,
            **key._asdict(),
            problems=self._problems,
            prompts_per_step=self._prompts_per_step,
            at=datetime.now(UTC),
            steps=len(steps),
            rewards=rewards,
            tokens=sum(step.tokens for step in steps),
            seconds=total(steps, "seconds"),
            waited=total(steps, "waited"),
            **means | {"reward": fmean(private) if private else None},
        )
        history.append(self._state / history.HISTORY, figures)

    def late(self) -> None:
        path = self._state / history.HISTORY
        for last in history.read(path, self._status.run, RoundFigures)[-1:]:
            history.append(path, last.model_copy(update={"late": True}))

    def _own_rewards(self, steps: Sequence[StepMetrics]) -> list[float | None]:
        """Each step's reward; None for a public step, whose prompts are the operator's."""
        private = zip(steps, self._private, strict=False)  # a round may have fewer steps
        return [step.reward if own else None for step, own in private]

    def _note(self, **changes: Any) -> None:
        with self._lock:
            always = {
                "at": datetime.now(UTC),
                "sent_bytes": self._previous.sent_bytes + self._connection.sent,
                "received_bytes": self._previous.received_bytes + self._connection.received,
            }
            self._status = self._status.model_copy(update=changes | always)
            write_status(self._state, self._status)
