"""The evaluator: pass@1 of each round's global adapter on the coordinator's test set."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.waiting import Waiting
from pubswap_client.state.residuals import Residuals
from pubswap_protocol.errors import WrongState
from pubswap_protocol.messages import Evaluation, RunState, RunView, Task, TaskKind
from pubswap_protocol.tensors.adapter import Adapter, AdapterFile, decode_adapter

log = logging.getLogger(__name__)

PassAt1 = Callable[[Adapter, Sequence[AdapterFile]], tuple[float, dict[str, float]]]


@dataclass
class Evaluator:
    """A member that trains nothing.

    `pass_at_1` maps an adapter and the residuals under it to (overall, by topic).
    """

    api: CoordinatorClient
    run: RunView
    problems: int
    pass_at_1: PassAt1
    residuals: Residuals

    def work(self) -> RunState:
        """Take evaluation tasks until the run has ended, and say how it did.

        What a finished run still has to evaluate is evaluated first.
        """
        waiting = Waiting()
        while True:
            task = self.api.task(self.run.id)
            if task.kind is TaskKind.FINISHED:
                log.info("The run is %s.", task.state)
                return task.state
            waiting.log(task.waits_for)
            if task.kind is TaskKind.EVALUATE:
                self.evaluate(task)

    def evaluate(self, task: Task) -> None:
        """Evaluate one round's adapter and hand in the figures."""
        if task.adapter is None:
            raise WrongState("The coordinator gave an evaluation task without an adapter.")
        started = time.monotonic()
        adapter = decode_adapter(self.run.model.layout, self.api.blob(self.run.id, task.adapter))
        overall, by_topic = self.pass_at_1(adapter, self.residuals.files(task.residuals))
        evaluation = Evaluation(
            pass_at_1=overall,
            by_topic=by_topic,
            problems=self.problems,
            seconds=time.monotonic() - started,
        )
        self.api.submit_evaluation(self.run.id, task.round, evaluation)
        log.info("Round %d: pass@1 %.3f on %d problems.", task.round, overall, self.problems)
