"""An organisation's daemon: ask for a task, train a round, hand it in, repeat."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from pubswap_client.consent.attendance import Attendance
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Pace
from pubswap_client.coordinator.route import LONG_POLL_SECONDS
from pubswap_client.daemon.held_out import HeldOut
from pubswap_client.daemon.own_settings import RoundLimits
from pubswap_client.daemon.reporters import ASKING, Reporter
from pubswap_client.daemon.round import LocalRound
from pubswap_client.state.journal import Journal, RoundKey
from pubswap_client.state.privacy import PrivacyBudget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    Diverged,
    HelloNeeded,
    IdempotencyMismatch,
    PubSwapError,
    RefusedByPolicy,
    RoundClosed,
    RunCancelled,
    UnknownBlob,
    WrongState,
)
from pubswap_protocol.messages import RunState, RunView, Task, TaskKind
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.adapter import decode_adapter

log = logging.getLogger(__name__)


@dataclass
class Daemon:
    """The main loop of one member of one run, with all its dependencies passed in."""

    api: CoordinatorClient
    run: RunView
    trainer: LocalTrainer
    journal: Journal
    reporter: Reporter
    examples: int
    attendance: Attendance | None = None
    privacy: PrivacyBudget | None = None
    held_out: HeldOut | None = None
    limits: RoundLimits = field(default_factory=RoundLimits)
    public: Sequence[Problem] = ()

    def work(self) -> RunState:
        """Work on tasks until the run is finished or cancelled; returns that state."""
        doing, wait, pace = ASKING, 0.0, Pace()
        while True:
            self.reporter.doing(doing)
            try:
                task = self.api.task(self.run.id, wait)
            except RefusedByPolicy:
                if self.attendance is None:
                    raise
                self.attendance.wait(self.reporter.doing)
                continue
            if task.kind is TaskKind.FINISHED:
                if task.state is RunState.FINISHED:
                    self._measure_final()
                self.reporter.doing(f"the run is {task.state}")
                log.info("The run is %s.", task.state)
                return task.state
            doing = f"waiting for {task.waits_for}" if task.waits_for else ASKING
            # The first request does not long-poll: its answer says what we are waiting for.
            wait = LONG_POLL_SECONDS if task.kind is TaskKind.WAIT else 0.0
            progressed = False
            # Until the start the operator may change the terms, which then need another approval.
            if task.state is RunState.OPEN and self.attendance is not None:
                self.attendance.wait(self.reporter.doing)
            if task.kind is TaskKind.TRAIN:
                if self.attendance is not None and self.attendance.wait(
                    self.reporter.doing, task.round
                ):
                    continue  # the round may be another by now
                try:
                    progressed = self.train_round(task)
                except RefusedByPolicy as error:
                    log.warning("Leaving round %d for now: %s", task.round, error.detail)
                except RunCancelled as error:
                    log.warning("Giving up round %d: %s", task.round, error.detail)
                except HelloNeeded:  # asking for the next task says hello again
                    log.warning("Leaving round %d until the coordinator has our hello.", task.round)
                except Diverged as error:
                    if self.attendance is None:
                        raise
                    log.error("Round %d diverges: %s", task.round, error.detail)
                    self.attendance.sit_out(task, error.detail, self.reporter.doing)
                # After a rollback the coordinator no longer has the blob that we uploaded.
                except (RoundClosed, WrongState, IdempotencyMismatch, UnknownBlob) as error:
                    log.warning("Round %d goes on without us: %s", task.round, error.detail)
            if progressed:
                pace.renew()
            else:
                pace.idle()

    def train_round(self, task: Task) -> bool:
        """Train tau local GRPO steps from the global adapter and hand in the result.

        Returns whether any step was made.
        """
        if task.adapter is None or task.round < 1:  # organisations' policies count rounds from 1
            raise WrongState("The coordinator gave a training task without an adapter or a round.")
        local = LocalRound(
            self.api,
            self.run,
            self.trainer,
            self.journal,
            self.reporter,
            RoundKey(task.round, task.adapter, task.rollbacks),
            self.privacy,
            self.held_out,
            self.limits,
            self.public,
        )
        progressed = local.train()
        local.hand_in(self.examples)
        return progressed

    def _measure_final(self) -> None:
        """Score the last round's adapter on the held-out problems."""
        if self.held_out is None:
            return
        layout = self.run.model.layout
        try:
            number, data = self.api.adapter_of_round(self.run.id, "final", layout.file_bytes)
            adapter = decode_adapter(layout, data)
        except PubSwapError as error:
            log.warning("The last round was not measured on held-out problems: %s", error.detail)
            return
        self.held_out.measure(self.trainer, self.reporter, number, digest_of(data), adapter)
