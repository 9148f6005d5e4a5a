"""One client's work in one round: tau local steps, each kept on disk before the next begins."""

import logging

from pubswap_client.api import CoordinatorClient
from pubswap_client.checkpoint import Checkpoint
from pubswap_client.progress import OwnResponses, ProgressStore, PublicStep, ReducedUpdate
from pubswap_client.reporting import Reporter, StepReport, moving
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.adapter import Adapter, decode_adapter
from pubswap_protocol.errors import IdempotencyMismatch, RoundClosed
from pubswap_protocol.factors import sent_layout
from pubswap_protocol.messages import (
    Digest,
    Progress,
    ReceiptStatus,
    RunView,
    SubmitUpdate,
    SwapPrompts,
    UpdateMetrics,
)
from pubswap_protocol.responses import (
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)
from pubswap_protocol.schedule import public_step
from pubswap_protocol.wire import encode_update

log = logging.getLogger(__name__)

Groups = list[list[Response]]


class LocalRound:
    """A round from its global adapter to its hand-in.

    A process that is killed at any point and started again goes on after the last step that was
    kept. On a CPU the adapter then has the very bits of an undisturbed one.
    """

    def __init__(
        self,
        api: CoordinatorClient,
        run: RunView,
        trainer: LocalTrainer,
        progress: ProgressStore,
        reporter: Reporter,
        number: int,
        start: Digest,
    ) -> None:
        """Round `number` (1, 2, ...) from the global adapter with the digest `start`."""
        self._api = api
        self._run = run
        self._trainer = trainer
        self._progress = progress
        self._reporter = reporter
        self._number = number
        self._start = start
        self._done: list[StepMetrics] = []
        self._base: Adapter = {}

    def train(self) -> None:
        """All local steps that are not done yet. Raises RoundClosed, WrongState or NotSaved."""
        self._begin()
        for step in range(len(self._done) + 1, self._run.settings.local_steps + 1):
            self._done.append(self._step(step))
            checkpoint = Checkpoint(
                self._number, self._start, tuple(self._done), self._trainer.snapshot()
            )
            self._progress.save(checkpoint)
            self._report(step)

    def hand_in(self, examples: int) -> None:
        """Send the adapter that `train` has made; `examples` is the private set's size."""
        moved = moving(self._reporter, "handing the adapter in")
        digest = self._api.put_blob(self._run.id, self._update(), moved)
        update = SubmitUpdate(adapter=digest, metrics=_summary(self._done, examples))
        receipt = self._api.submit_update(self._run.id, self._number, update)
        if receipt.status is ReceiptStatus.LATE:
            self._progress.forget_update()
        log.info("Round %d handed in: %s.", self._number, receipt.status)

    def _update(self) -> bytes:
        """The bytes to hand in: on disk before they are sent, if they leave something out.

        A process that is killed then sends the same again, and does not count a residual twice.
        """
        settings = self._run.settings
        layout = sent_layout(self._run.model.layout, settings.aggregation.rule)
        kept = self._progress.update()
        if kept is not None and (kept.round, kept.start) == (self._number, self._start):
            return kept.body
        residual = kept.residual if kept is not None and kept.round < self._number else {}
        factors = self._trainer.adapter()
        adapter = {name: factors[name] for name in layout.tensors}
        body, left = encode_update(layout, settings.wire.precision, adapter, self._base, residual)
        if left:
            self._progress.save_update(ReducedUpdate(self._number, self._start, body, left))
        return body

    def _begin(self) -> None:
        """Start from the global adapter, or go on from the last checkpoint of this round."""
        moved = moving(self._reporter, "fetching the global adapter")
        data = self._api.blob(self._run.id, self._start, moved)
        adapter = decode_adapter(self._run.model.layout, data)
        if self._run.settings.wire.precision != "float32":
            self._base = adapter  # what is sent is the difference to it
        checkpoint = self._progress.checkpoint()
        if checkpoint is not None and checkpoint.round < self._number:
            # For an optimizer that is kept; `begin_round` replaces the factors, or all of it.
            self._trainer.restore(checkpoint.snapshot)
        self._trainer.begin_round(self._number, adapter)
        if checkpoint is not None and (checkpoint.round, checkpoint.start) == (
            self._number,
            self._start,
        ):
            self._trainer.restore(checkpoint.snapshot)
            self._done = list(checkpoint.steps)
            log.info("Round %d goes on after step %d.", self._number, checkpoint.step)

    def _step(self, step: int) -> StepMetrics:
        swap = public_step(self._run.settings, step)
        if swap is None:
            self._reporter.doing(f"private step {step}")
            return self._trainer.private_step(step)
        self._reporter.doing(f"public step {step}: sampling")
        prompts = self._api.swap_prompts(self._run.id, self._number, swap)
        problems = [entry.problem for entry in prompts.prompts]
        own = self._own(step, prompts)
        self._reporter.doing(f"public step {step}: waiting for the other organisations")
        received = self._received(prompts, own)
        self._reporter.doing(f"public step {step}: updating")
        return self._trainer.public_step(step, problems, received)

    def _own(self, step: int, prompts: SwapPrompts) -> bytes:
        """The file of our responses: on disk before it is sent.

        A coordinator that has it takes no other one, and an engine need not sample the same again.
        """
        problems = [entry.problem for entry in prompts.prompts]
        key = PublicStep(self._number, self._start, prompts.swap)
        kept = self._progress.own(key)
        if kept is not None:
            groups = decode_responses(kept.body, self._rules(prompts))
            self._trainer.resume_rollout(problems, groups, kept.seconds)
            return kept.body
        groups = self._trainer.public_rollout(step, problems)
        body = encode_responses(_indices(prompts), groups)
        # What the coordinator would refuse must not be kept, or no restart could mend it.
        decode_responses(body, self._rules(prompts))
        self._progress.save_own(key, OwnResponses(body, self._trainer.rollout_seconds))
        return body

    def _received(self, prompts: SwapPrompts, own: bytes) -> Groups:
        """The groups to train on: on disk before they are, so that a restart trains on the same.

        Our own if we came too late for the exchange; kept like a peer's, that stays decided.
        """
        key = PublicStep(self._number, self._start, prompts.swap)
        kept = self._progress.received(key)
        body = kept if kept is not None else self._exchange(prompts, own)
        groups = decode_responses(body, self._rules(prompts))
        if kept is None:
            self._progress.save_received(key, body)
        return groups

    def _exchange(self, prompts: SwapPrompts, own: bytes) -> bytes:
        run, number, swap = self._run.id, self._number, prompts.swap
        try:
            receipt = self._api.submit_responses(run, number, swap, own)
        except IdempotencyMismatch as error:
            # What we sent before was lost here; the exchange has it, and gives its groups.
            log.warning("%s Going on with what the coordinator has.", error.detail)
        else:
            if receipt.status is ReceiptStatus.LATE:
                log.warning("Public step %d closed without us; training on our own.", swap)
                return own
        try:
            return self._api.exchanged(run, number, swap)
        except RoundClosed as error:
            log.warning("%s", error.detail)
            return own

    def _rules(self, prompts: SwapPrompts) -> ResponseRules:
        grpo = self._run.settings.grpo
        return ResponseRules(
            prompts=_indices(prompts),
            responses_per_prompt=grpo.responses_per_prompt,
            max_response_tokens=grpo.max_response_tokens,
            vocabulary=self._run.model.vocabulary,
        )

    def _report(self, step: int) -> None:
        settings, metrics = self._run.settings, self._done[-1]
        self._reporter.step(
            StepReport(
                round=self._number,
                rounds=settings.rounds,
                step=step,
                steps=settings.local_steps,
                public=public_step(settings, step) is not None,
                metrics=metrics,
            )
        )
        progress = Progress(
            round=self._number,
            step=step,
            steps=settings.local_steps,
            reward=metrics.reward,
            loss=metrics.loss,
            tokens_per_second=metrics.tokens_per_second,
        )
        self._api.heartbeat(self._run.id, progress)


def _indices(prompts: SwapPrompts) -> tuple[int, ...]:
    return tuple(entry.index for entry in prompts.prompts)


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
