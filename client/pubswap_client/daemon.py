"""An organisation's daemon: ask what to do, train a round, hand it in, ask again."""

import logging
import time
from dataclasses import dataclass

from pubswap_client.api import CoordinatorClient
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import StepMetrics
from pubswap_protocol.adapter import decode_adapter, encode_adapter
from pubswap_protocol.errors import RoundClosed, WrongState
from pubswap_protocol.messages import (
    Progress,
    ReceiptStatus,
    RunView,
    SubmitUpdate,
    SwapPrompts,
    Task,
    TaskKind,
    UpdateMetrics,
)
from pubswap_protocol.responses import (
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)
from pubswap_protocol.schedule import public_step

log = logging.getLogger(__name__)

Groups = list[list[Response]]


@dataclass
class Daemon:
    """One member of one run, with everything it needs given to it."""

    api: CoordinatorClient
    run: RunView
    trainer: LocalTrainer
    examples: int

    def work(self) -> None:
        """Take tasks until the run is finished or cancelled."""
        while True:
            task = self.api.task(self.run.id)
            if task.kind is TaskKind.FINISHED:
                log.info("The run is %s.", task.state)
                return
            if task.kind is TaskKind.TRAIN:
                try:
                    self.train_round(task)
                except (RoundClosed, WrongState) as error:
                    log.warning("Round %d goes on without us: %s", task.round, error.detail)

    def train_round(self, task: Task) -> None:
        """tau local GRPO steps from the global adapter, then hand in our own."""
        if task.adapter is None:
            raise WrongState("The coordinator gave a training task without an adapter.")
        layout = self.run.model.layout
        self.trainer.begin_round(
            task.round, decode_adapter(layout, self.api.blob(self.run.id, task.adapter))
        )
        started, done = time.monotonic(), []
        for step in range(1, self.run.settings.local_steps + 1):
            done.append(self._step(task.round, step))
            self._report(task.round, step, done[-1])
        digest = self.api.put_blob(self.run.id, encode_adapter(layout, self.trainer.adapter()))
        metrics = _summary(done, self.examples, time.monotonic() - started)
        receipt = self.api.submit_update(
            self.run.id, task.round, SubmitUpdate(adapter=digest, metrics=metrics)
        )
        log.info("Round %d handed in: %s.", task.round, receipt.status)

    def _step(self, round_: int, step: int) -> StepMetrics:
        swap = public_step(self.run.settings, step)
        if swap is None:
            return self.trainer.private_step(step)
        prompts = self.api.swap_prompts(self.run.id, round_, swap)
        problems = [entry.problem for entry in prompts.prompts]
        own = self.trainer.public_rollout(step, problems)
        return self.trainer.public_step(step, problems, self._exchange(prompts, own))

    def _exchange(self, prompts: SwapPrompts, own: Groups) -> Groups:
        """The groups to train on; our own if we came too late for the exchange."""
        indices = tuple(entry.index for entry in prompts.prompts)
        body = encode_responses(indices, own)
        receipt = self.api.submit_responses(self.run.id, prompts.round, prompts.swap, body)
        if receipt.status is ReceiptStatus.LATE:
            log.warning("Public step %d closed without us; training on our own.", prompts.swap)
            return own
        try:
            data = self.api.exchanged(self.run.id, prompts.round, prompts.swap)
        except RoundClosed as error:
            log.warning("%s", error.detail)
            return own
        return decode_responses(data, self._rules(indices))

    def _rules(self, indices: tuple[int, ...]) -> ResponseRules:
        grpo = self.run.settings.grpo
        return ResponseRules(
            prompts=indices,
            responses_per_prompt=grpo.responses_per_prompt,
            max_response_tokens=grpo.max_response_tokens,
            vocabulary=self.run.model.vocabulary,
        )

    def _report(self, round_: int, step: int, metrics: StepMetrics) -> None:
        steps = self.run.settings.local_steps
        rate = metrics.tokens / metrics.seconds if metrics.seconds else None
        log.info(
            "round %d step %d/%d  reward %.3f  kl %.2e  clip %.3f  %.0f tokens/s",
            *(round_, step, steps, metrics.reward, metrics.kl, metrics.clip_share, rate or 0),
        )
        progress = Progress(
            round=round_,
            step=step,
            steps=steps,
            reward=metrics.reward,
            loss=metrics.loss,
            tokens_per_second=rate,
        )
        self.api.heartbeat(self.run.id, progress)


def _summary(steps: list[StepMetrics], examples: int, seconds: float) -> UpdateMetrics:
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
        seconds=seconds,
    )
