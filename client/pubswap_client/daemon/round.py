"""One client's work in one round: tau local steps, each saved while the next one is made.

A step is reported, and its consequences are saved or sent, once it is on disk. At most one write is
under way: the next write, a public step and the hand-in wait for it.
"""

import logging
import math
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial

from pubswap_client.daemon.context import MemberContext
from pubswap_client.daemon.heartbeats import Heartbeats
from pubswap_client.daemon.holding import Gate
from pubswap_client.daemon.public_steps import PublicSteps
from pubswap_client.daemon.reporters import MEANS, Reporter, Reporters, StepReport, total
from pubswap_client.daemon.signals import time_is_up
from pubswap_client.state.journal import Checkpoint, RoundKey
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.bounds import MAX_REPORTED_DONORS, MAX_REPORTED_STEPS
from pubswap_protocol.errors import IdempotencyMismatch, PubSwapError
from pubswap_protocol.messages import (
    DonorEvidence,
    Progress,
    ReceiptStatus,
    SubmitUpdate,
    UpdateMetrics,
)
from pubswap_protocol.schedule import overtaken, public_step_number, update_order
from pubswap_protocol.tensors.adapter import Adapter, decode_adapter, sent_layout
from pubswap_protocol.tensors.ranks import at_rank, leading
from pubswap_protocol.tensors.update_encoding import encode_update
from pubswap_protocol.verifiers.registry import foreign

log = logging.getLogger(__name__)

UPDATE = 0  # in `Progress.holds`


@dataclass
class LocalRound:
    """A round from its global adapter to its hand-in.

    A process that is killed at any point and started again continues after the last saved step. On
    a CPU the adapter is then bit-identical to that of an undisturbed round. After a rollback the
    round starts over, even from the same adapter.
    """

    context: MemberContext
    key: RoundKey
    _done: list[StepMetrics] = field(default_factory=list)
    _base: Adapter = field(default_factory=dict)
    _transfer: float = 0.0  # seconds spent on adapters, in this process
    _keeping: Future[None] | None = None  # the last step's write

    def __post_init__(self) -> None:
        self.api, self.run = self.context.api, self.context.run
        self.trainer, self.reporter = self.context.trainer, self.context.reporter
        self._gate = Gate(self.context, lambda holds: self._heartbeats.holds(holds))
        self._public = PublicSteps(self.context, self.key, self._gate, self._wait_until_saved)

    def train(self) -> bool:
        """Make the local steps that are not done yet, or as many as the limits allow.

        Returns whether any was made. Raises RoundClosed, WrongState or NotSaved.
        """
        tau = self.run.settings.local_steps
        self._heartbeats = self._new_heartbeats(Progress(round=self.key.round, step=0, steps=tau))
        with self._heartbeats, ThreadPoolExecutor(1, threading.current_thread().name) as thread:
            # Already with heartbeats, as fetching and measuring the adapter may take long.
            self._begin()
            resumed_steps = len(self._done)
            self._heartbeats.resumed(resumed_steps)
            reporter = Reporters([self.reporter, self._heartbeats])
            for step in update_order(self.run.settings)[len(self._done) :]:
                if self.context.limits.over(self._done):
                    log.info(
                        "Round %d is handed in after step %d.", self.key.round, len(self._done)
                    )
                    break
                if self.context.deadline.over:
                    self._wait_until_saved()
                    time_is_up()
                metrics = self.step(step)
                self._wait_until_saved()
                self._done.append(metrics)
                self.context.deadline.look(self._done)
                self._keeping = thread.submit(self.keep, step, self._checkpoint(), reporter)
            self._wait_until_saved()
        self.reporter.trained(self.key, self._done)
        return len(self._done) > resumed_steps

    def _new_heartbeats(self, begun: Progress) -> Heartbeats:
        send = partial(self.api.heartbeat, self.run.id)
        return Heartbeats(send, begun, private=self._silent)

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self.key, tuple(self._done), self.trainer.snapshot())

    def keep(self, step: int, checkpoint: Checkpoint, reporter: Reporter) -> None:
        """Write a checkpoint, then report its last step; runs in a thread of its own."""
        settings = self.run.settings
        self.context.journal.save(checkpoint, under_way=overtaken(settings, step) is not None)
        reporter.step(
            StepReport(
                round=self.key.round,
                rounds=settings.rounds,
                step=len(checkpoint.steps),
                steps=settings.local_steps,
                public=public_step_number(settings, step) is not None,
                completed=checkpoint.steps,
            )
        )

    def _wait_until_saved(self) -> None:
        """Wait until the last step is on disk and reported; raises the error that prevented it."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.result()

    def hand_in(self) -> None:
        """Send the adapter that `train` has made."""
        self._heartbeats = self._new_heartbeats(self._heartbeats.newest)
        try:
            with self._heartbeats:
                status = self._submit()
        except IdempotencyMismatch:  # an earlier update of ours counts
            raise
        except PubSwapError:
            self.reporter.late()  # unless it is handed in after all
            raise
        if status is ReceiptStatus.LATE:
            self.reporter.late()
        log.info("Round %d handed in: %s.", self.key.round, status)

    def _submit(self) -> ReceiptStatus:
        body = self._update()
        digest = self._gate.send(UPDATE, partial(self._upload, body))
        update = SubmitUpdate(adapter=digest, metrics=self._summary())
        hand_in = partial(self.api.submit_update, self.run.id, self.key.round, update)
        receipt = self._gate.send(UPDATE, partial(hand_in, self.key.start, self.key.rollbacks))
        return receipt.status

    def _upload(self, body: bytes) -> str:
        """Send the update's bytes; returns their digest."""
        on_bytes = self.reporter.transfer("handing the adapter in")
        began = time.monotonic()
        digest = self.api.put_blob(self.run.id, body, on_bytes)
        self._transfer += time.monotonic() - began
        return digest

    def _update(self) -> bytes:
        """The bytes to hand in; a restarted process makes the same ones from the checkpoint."""
        settings, factors, base = self.run.settings, self.trainer.adapter(), self._base
        layout = sent_layout(self.run.model.layout, settings.aggregation.rule)
        adapter = {name: factors[name] for name in layout.tensors}
        if (rank := self.trainer.updates.own_rank) is not None:
            layout = at_rank(layout, rank)
            adapter, base = leading(adapter, rank), leading(base, rank)
        return encode_update(layout, settings.wire.precision, adapter, base)

    def _begin(self) -> None:
        """Start from the global adapter, or continue from this round's last checkpoint."""
        on_bytes = self.reporter.transfer("fetching the global adapter")
        began, layout = time.monotonic(), self.run.model.layout
        data = self.api.blob(self.run.id, self.key.start, on_bytes, layout.file_bytes)
        self._transfer = time.monotonic() - began
        adapter = decode_adapter(layout, data)
        if self.run.settings.wire.precision != "float32":
            self._base = adapter  # the update is sent as the difference from it
        if self.context.held_out is not None:
            previous = self.key.round - 1
            self.context.held_out.measure(
                self.trainer, self.reporter, previous, self.key.start, adapter
            )
        checkpoint = self.context.journal.checkpoint()
        if checkpoint is not None:
            if self.context.privacy is not None:
                self.context.privacy.pay(checkpoint.snapshot.beginning)
            # Restores the prompts drawn, and the optimizer if kept; `begin` replaces the rest.
            self.trainer.restore(checkpoint.snapshot)
        begin = partial(
            self.trainer.begin_round,
            self.key.round,
            adapter,
            # The last case: the coordinator was restored from a backup, and counts no rollback.
            rolled_back=checkpoint is None
            or checkpoint.key.rollbacks != self.key.rollbacks
            or checkpoint.key.round >= self.key.round,
        )
        if checkpoint is not None and checkpoint.key == self.key:
            begin()
            self.trainer.restore(checkpoint.snapshot)
            self._done = list(checkpoint.steps)
            log.info("Round %d continues after step %d.", self.key.round, len(self._done))
            return
        if self.context.privacy is not None:
            beginning = self.context.privacy.next_beginning()
            begin(beginning=beginning)
            # Save before paying: after a kill in between, the restart pays for this beginning.
            # In the other order it would begin the round, and pay, once more.
            self.context.journal.save(self._checkpoint())
            self.context.privacy.pay(beginning)
        else:
            begin()

    def step(self, step: int) -> StepMetrics:
        if public_step_number(self.run.settings, step) is not None:
            return self._public.make(step)
        ahead = overtaken(self.run.settings, step)
        if ahead is not None:
            self._public.send_ahead(ahead)
        self.reporter.doing(f"private step {step}")
        metrics = self.trainer.private_step(step)
        if self.run.settings.grpo.resample and metrics.zero_variance_share == 1:
            log.warning(
                "Private step %d taught nothing: each of %d prompts had equal rewards for all its "
                "responses. If this persists, the private problems are too easy or too hard.",
                step,
                metrics.prompts_sampled,
            )
        return metrics

    @cached_property
    def _silent(self) -> bool:
        """Whether figures of private steps stay here."""
        verifier = self.run.settings.verifier
        own = any(foreign(problem, verifier) for problem in self.trainer.problems)
        return own or self.context.privacy is not None

    def _summary(self) -> UpdateMetrics:
        """The round's metrics to report. With privacy, figures cover public steps only.

        Figures of private steps are functions of private prompts that no noise covers, or of the
        scores of a verifier that only this member has.
        """
        pairs = zip(self._done, update_order(self.run.settings), strict=False)
        reported = [
            None
            if self._silent and public_step_number(self.run.settings, step) is None
            else metrics
            for metrics, step in pairs
        ]
        steps = [metrics for metrics in reported if metrics is not None]
        return UpdateMetrics(
            examples=len(self.trainer.problems),
            steps=len(self._done),
            seconds=None if self._silent else total(steps, "seconds"),
            sampling_seconds=None if self._silent else total(steps, "sampling"),
            waiting_seconds=total(self._done, "waited"),
            transfer_seconds=self._transfer,
            exchanges_refused=int(total(self._done, "exchange_refused")),
            step_rewards=[metrics and metrics.reward for metrics in reported[:MAX_REPORTED_STEPS]],
            epsilon=self.context.privacy.epsilon if self.context.privacy else None,
            donors=_donors(steps)[:MAX_REPORTED_DONORS],
            **{name: total(steps, name) / len(steps) if steps else None for name in MEANS},
        )


def _donors(steps: list[StepMetrics]) -> list[DonorEvidence]:
    """The evidence on each donor, summed over the steps; most responses first."""
    counts, sums = Counter[str](), defaultdict[str, float](float)
    for step in steps:
        for donor, (count, evidence) in step.donors.items():
            counts[donor] += int(count)
            sums[donor] += evidence
    return [
        DonorEvidence(number=int(donor), responses=count, other_noise=sums[donor])
        for donor, count in counts.most_common()
        if math.isfinite(sums[donor])
    ]
