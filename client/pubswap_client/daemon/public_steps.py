"""One client's public steps in one round: prompts in, responses out, the exchange's groups back.

In a pipelined run a step is sampled and sent in its place, but updated on after the private step
behind it: its peers may answer meanwhile. Our responses are on disk until then.
"""

import logging
import time
from dataclasses import dataclass, replace

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.daemon.reporters import Reporter
from pubswap_client.settings import ClientSettings
from pubswap_client.state.journal import OwnResponses, ProgressStore, PublicStep
from pubswap_client.training.metrics import StepMetrics
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.errors import IdempotencyMismatch, InvalidSettings, RoundClosed
from pubswap_protocol.messages import Digest, ReceiptStatus, RunView, SwapPrompts
from pubswap_protocol.problems import Problem
from pubswap_protocol.schedule import public_step, staleness
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.responses import (
    Response,
    ResponseRules,
    decode_offers,
    decode_responses,
    encode_responses,
)


@dataclass(frozen=True)
class RoundContext:
    """One client's part in round `number` (1, 2, ...), from the global adapter `start` on."""

    api: CoordinatorClient
    run: RunView
    trainer: LocalTrainer
    progress: ProgressStore
    reporter: Reporter
    number: int
    start: Digest


log = logging.getLogger(__name__)


class PublicSteps:
    """The public steps of one client's round."""

    def __init__(self, part: RoundContext) -> None:
        self._part = part
        self._ahead: dict[int, tuple[SwapPrompts, bytes]] = {}
        self._waited = 0.0

    def send(self, step: int) -> None:
        """Sample and send a step that a private one overtakes; `make` updates on it later."""
        self._ahead = {step: self._sampled(step)}
        self._submit(*self._ahead[step])

    def make(self, step: int) -> StepMetrics:
        """The whole of a step, or what is left of it after `send`."""
        prompts, own = self._ahead.pop(step) if step in self._ahead else self._sampled(step)
        self._part.reporter.doing(f"public step {step}: waiting for the other organisations")
        received = self._received(step, prompts, own)
        self._part.reporter.doing(f"public step {step}: updating")
        metrics = self._part.trainer.public_step(step, _problems(prompts), received)
        return replace(metrics, waited=self._waited)

    def _sampled(self, step: int) -> tuple[SwapPrompts, bytes]:
        """A public step's prompts, and our responses to them: sampled now, or kept from before."""
        swap = public_step(self._part.run.settings, step)
        assert swap is not None
        self._part.reporter.doing(f"public step {step}: sampling")
        prompts = self._part.api.swap_prompts(self._part.run.id, self._part.number, swap)
        return prompts, self._own(step, prompts)

    def _own(self, step: int, prompts: SwapPrompts) -> bytes:
        """The file of our responses: on disk before it is sent.

        A coordinator that has it takes no other one, and an engine need not sample the same again.
        """
        problems = _problems(prompts)
        key = PublicStep(self._part.number, self._part.start, prompts.swap)
        kept = self._part.progress.own(key)
        if kept is not None:
            groups = decode_responses(kept.body, self._rules(prompts))
            self._part.trainer.resume_rollout(problems, groups, kept.seconds)
            return kept.body
        groups = self._part.trainer.public_rollout(step, problems)
        body = encode_responses(_indices(prompts), groups)
        # What the coordinator would refuse must not be kept, or no restart could mend it.
        decode_responses(body, self._rules(prompts))
        self._part.progress.save_own(key, OwnResponses(body, self._part.trainer.rollout_seconds))
        return body

    def _received(self, step: int, prompts: SwapPrompts, own: bytes) -> list[list[Response]]:
        """The groups to train on: on disk before they are, so that a restart trains on the same.

        Our own if we came too late for the exchange; kept like a peer's, that stays decided.
        """
        key = PublicStep(self._part.number, self._part.start, prompts.swap)
        kept = self._part.progress.received(key)
        self._waited = 0.0
        body = kept if kept is not None else self._exchange(step, prompts, own)
        groups = decode_responses(body, self._rules(prompts))
        if kept is None:
            self._part.progress.save_received(key, body)
        return groups

    def _exchange(self, step: int, prompts: SwapPrompts, own: bytes) -> bytes:
        """The file of what we train on, from the coordinator, or our own."""
        # What was overtaken is with the coordinator, or the step that overtook it were not done.
        if not staleness(self._part.run.settings, step) and not self._submit(prompts, own):
            return own
        started = time.monotonic()
        try:
            answer = self._part.api.exchanged(self._part.run.id, self._part.number, prompts.swap)
        except RoundClosed as error:
            log.warning("%s", error.detail)
            return own
        finally:
            self._waited = time.monotonic() - started
        return self._chosen(prompts, answer)

    def _submit(self, prompts: SwapPrompts, own: bytes) -> bool:
        """Send our responses; returns whether they came in time for the exchange."""
        try:
            receipt = self._part.api.submit_responses(
                self._part.run.id, self._part.number, prompts.swap, own
            )
        except IdempotencyMismatch as error:
            # What we sent before was lost here; the exchange has it, and gives its groups.
            log.warning("%s Going on with what the coordinator has.", error.detail)
            return True
        if receipt.status is ReceiptStatus.LATE:
            log.warning("Public step %d closed without us; training on our own.", prompts.swap)
        return receipt.status is not ReceiptStatus.LATE

    def _chosen(self, prompts: SwapPrompts, answer: bytes) -> bytes:
        """The exchange's groups, where need be after our own choice among what it offers."""
        if self._part.run.settings.swap.donors != "likely":
            return answer
        offers = decode_offers(answer, self._rules(prompts))
        return encode_responses(
            _indices(prompts), self._part.trainer.choose(_problems(prompts), offers)
        )

    def _rules(self, prompts: SwapPrompts) -> ResponseRules:
        grpo = self._part.run.settings.grpo
        return ResponseRules(
            prompts=_indices(prompts),
            responses_per_prompt=grpo.responses_per_prompt,
            max_response_tokens=grpo.max_response_tokens,
            vocabulary=self._part.run.model.vocabulary,
        )


def check_choosing(run: RunSettings, client: ClientSettings) -> None:
    """Raises InvalidSettings where a client cannot choose donors as the run asks it to."""
    if run.method == "pubswap" and run.swap.donors == "likely" and client.shard:
        raise InvalidSettings(
            "The run has swap.donors = 'likely', for which this client's policy scores responses "
            "outside of an update, and a sharded one cannot. Use shard = false, or a run with "
            "swap.donors = 'uniform'."
        )


def _indices(prompts: SwapPrompts) -> tuple[int, ...]:
    return tuple(entry.index for entry in prompts.prompts)


def _problems(prompts: SwapPrompts) -> list[Problem]:
    return [entry.problem for entry in prompts.prompts]
