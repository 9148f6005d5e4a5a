"""An organisation's daemon: ask for a task, train a round, hand it in, repeat."""

import logging
from dataclasses import dataclass

from pubswap_client.consent.participation import Participation
from pubswap_client.coordinator.retry import PollThrottle
from pubswap_client.coordinator.route import LONG_POLL_SECONDS
from pubswap_client.daemon.context import MemberContext
from pubswap_client.daemon.round import LocalRound
from pubswap_client.daemon.signals import time_is_up
from pubswap_client.state.journal import RoundKey
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
from pubswap_protocol.messages import RunState, Task, TaskKind
from pubswap_protocol.tensors.adapter import decode_adapter

log = logging.getLogger(__name__)

ASKING = "asking for work"  # the activity between two tasks


@dataclass
class Daemon:
    """The main loop of one member of one run."""

    context: MemberContext
    participation: Participation | None = None

    def work(self) -> RunState:
        """Work on tasks until the run is finished or cancelled; returns that state."""
        api, run, reporter = self.context.api, self.context.run, self.context.reporter
        doing, wait, throttle = ASKING, 0.0, PollThrottle()
        while True:
            if self.context.deadline.over:
                time_is_up()
            reporter.doing(doing)
            try:
                task = api.task(run.id, wait)
            except RefusedByPolicy:
                if self.participation is None:
                    raise
                self.participation.wait(reporter.doing)
                continue
            if task.kind is TaskKind.FINISHED:
                if task.state is RunState.FINISHED:
                    self._measure_final()
                reporter.doing(f"the run is {task.state}")
                log.info("The run is %s.", task.state)
                return task.state
            doing = f"waiting for {task.waits_for}" if task.waits_for else ASKING
            # The first request does not long-poll: its answer says what we are waiting for.
            wait = LONG_POLL_SECONDS if task.kind is TaskKind.WAIT else 0.0
            progressed = False
            # Until the start the operator may change the terms, which then need another approval.
            if task.state is RunState.OPEN and self.participation is not None:
                self.participation.wait(reporter.doing)
            if task.kind is TaskKind.TRAIN:
                if self.participation is not None and self.participation.wait(reporter.doing):
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
                    if self.participation is None:
                        raise
                    log.error("Round %d diverges: %s", task.round, error.detail)
                    self.participation.sit_out(task, error.detail, reporter.doing)
                # After a rollback the coordinator no longer has the blob that we uploaded.
                except (RoundClosed, WrongState, IdempotencyMismatch, UnknownBlob) as error:
                    log.warning("Round %d goes on without us: %s", task.round, error.detail)
            if progressed:
                throttle.reset()
            else:
                throttle.idle()

    def train_round(self, task: Task) -> bool:
        """Train tau local GRPO steps from the global adapter and hand in the result.

        Returns whether any step was made.
        """
        if task.adapter is None or task.round < 1:  # organisations' policies count rounds from 1
            raise WrongState("The coordinator gave a training task without an adapter or a round.")
        local = LocalRound(self.context, RoundKey(task.round, task.adapter, task.rollbacks))
        progressed = local.train()
        local.hand_in()
        return progressed

    def _measure_final(self) -> None:
        """Score the last round's adapter on the held-out problems."""
        context = self.context
        if context.held_out is None:
            return
        layout = context.run.model.layout
        try:
            number, data = context.api.adapter_of_round(context.run.id, "final", layout.file_bytes)
            adapter = decode_adapter(layout, data)
        except PubSwapError as error:
            log.warning("The last round was not measured on held-out problems: %s", error.detail)
            return
        context.held_out.measure(
            context.trainer, context.reporter, number, digest_of(data), adapter
        )
