"""One client's work in one round: tau local steps, each kept on disk before the next begins."""

import logging
from functools import partial

from pubswap_client.daemon.heartbeats import Heartbeats
from pubswap_client.daemon.public_steps import PublicSteps, RoundContext
from pubswap_client.daemon.reporters import StepReport, moving
from pubswap_client.state.checkpoint import Checkpoint
from pubswap_client.state.journal import ReducedUpdate
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.messages import (
    Progress,
    ReceiptStatus,
    SubmitUpdate,
    UpdateMetrics,
)
from pubswap_protocol.schedule import overtaken, public_step, update_order
from pubswap_protocol.tensors.adapter import Adapter, decode_adapter, sent_layout
from pubswap_protocol.tensors.update_encoding import encode_update

log = logging.getLogger(__name__)


class LocalRound:
    """A round from its global adapter to its hand-in.

    A process that is killed at any point and started again goes on after the last step that was
    kept. On a CPU the adapter then has the very bits of an undisturbed one.
    """

    def __init__(self, part: RoundContext) -> None:
        self._part = part
        self._done: list[StepMetrics] = []
        self._base: Adapter = {}
        self._public = PublicSteps(part)

    def train(self) -> None:
        """All local steps that are not done yet. Raises RoundClosed, WrongState or NotSaved."""
        self._begin()
        settings = self._part.run.settings
        with Heartbeats(partial(self._part.api.heartbeat, self._part.run.id)) as heartbeats:
            for step in update_order(settings)[len(self._done) :]:
                self._done.append(self._step(step))
                self._save(under_way=overtaken(settings, step) is not None)
                self._report(step)
                heartbeats.tell(self._heartbeat())

    def hand_in(self, examples: int) -> None:
        """Send the adapter that `train` has made; `examples` is the private set's size."""
        moved = moving(self._part.reporter, "handing the adapter in")
        digest = self._part.api.put_blob(self._part.run.id, self._update(), moved)
        update = SubmitUpdate(adapter=digest, metrics=_summary(self._done, examples))
        receipt = self._part.api.submit_update(self._part.run.id, self._part.number, update)
        if receipt.status is ReceiptStatus.LATE:
            self._part.progress.forget_update()
        log.info("Round %d handed in: %s.", self._part.number, receipt.status)

    def _update(self) -> bytes:
        """The bytes to hand in: on disk before they are sent, if they leave something out.

        A process that is killed then sends the same again, and does not count a residual twice.
        """
        settings = self._part.run.settings
        layout = sent_layout(self._part.run.model.layout, settings.aggregation.rule)
        kept = self._part.progress.update()
        if kept is not None and (kept.round, kept.start) == (self._part.number, self._part.start):
            return kept.body
        residual = kept.residual if kept is not None and kept.round < self._part.number else {}
        factors = self._part.trainer.adapter()
        adapter = {name: factors[name] for name in layout.tensors}
        body, left = encode_update(layout, settings.wire.precision, adapter, self._base, residual)
        if left:
            self._part.progress.save_update(
                ReducedUpdate(self._part.number, self._part.start, body, left)
            )
        return body

    def _begin(self) -> None:
        """Start from the global adapter, or go on from the last checkpoint of this round."""
        moved = moving(self._part.reporter, "fetching the global adapter")
        data = self._part.api.blob(self._part.run.id, self._part.start, moved)
        adapter = decode_adapter(self._part.run.model.layout, data)
        if self._part.run.settings.wire.precision != "float32":
            self._base = adapter  # what is sent is the difference to it
        checkpoint = self._part.progress.checkpoint()
        if checkpoint is not None and checkpoint.round < self._part.number:
            # For an optimizer that is kept; `begin_round` replaces the factors, or all of it.
            self._part.trainer.restore(checkpoint.snapshot)
        self._part.trainer.begin_round(self._part.number, adapter)
        if checkpoint is not None and (checkpoint.round, checkpoint.start) == (
            self._part.number,
            self._part.start,
        ):
            self._part.trainer.restore(checkpoint.snapshot)
            self._done = list(checkpoint.steps)
            log.info("Round %d goes on after step %d.", self._part.number, checkpoint.step)

    def _step(self, step: int) -> StepMetrics:
        if public_step(self._part.run.settings, step) is not None:
            return self._public.make(step)
        ahead = overtaken(self._part.run.settings, step)
        if ahead is not None:
            self._public.send(ahead)
        self._part.reporter.doing(f"private step {step}")
        return self._part.trainer.private_step(step)

    def _save(self, under_way: bool) -> None:
        trainer = self._part.trainer
        checkpoint = Checkpoint(
            self._part.number, self._part.start, tuple(self._done), trainer.snapshot()
        )
        self._part.progress.save(checkpoint, under_way=under_way)

    def _report(self, step: int) -> None:
        settings, metrics = self._part.run.settings, self._done[-1]
        self._part.reporter.step(
            StepReport(
                round=self._part.number,
                rounds=settings.rounds,
                step=len(self._done),
                steps=settings.local_steps,
                public=public_step(settings, step) is not None,
                metrics=metrics,
            )
        )

    def _heartbeat(self) -> Progress:
        metrics = self._done[-1]
        return Progress(
            round=self._part.number,
            step=len(self._done),
            steps=self._part.run.settings.local_steps,
            reward=metrics.reward,
            loss=metrics.loss,
            tokens_per_second=metrics.tokens_per_second,
        )


def _summary(steps: list[StepMetrics], examples: int) -> UpdateMetrics:
    def mean(name: str) -> float:
        return sum(float(getattr(step, name)) for step in steps) / len(steps)

    return UpdateMetrics(
        examples=examples,
        steps=len(steps),
        reward=mean("reward"),
        loss=mean("loss"),
        kl=mean("kl"),
        clip_share=mean("clip_share"),
        zero_variance_share=mean("zero_variance_share"),
        response_tokens=mean("response_tokens"),
        seconds=sum(step.seconds for step in steps),
    )
