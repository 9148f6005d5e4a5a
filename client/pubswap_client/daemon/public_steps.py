"""A round's public steps: get prompts, send responses, train on the exchange's groups.

In a pipelined run a public step is sampled and sent in order, but its update comes after the next
private step, so that peers can answer meanwhile. Our responses stay on disk until then.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from pubswap_client.daemon.context import MemberContext
from pubswap_client.daemon.holding import Gate
from pubswap_client.state.journal import PublicStepKey, RoundKey
from pubswap_client.training.metrics import StepMetrics
from pubswap_protocol.errors import (
    IdempotencyMismatch,
    InvalidProblems,
    InvalidResponses,
    RoundClosed,
    WrongState,
)
from pubswap_protocol.messages import PublicStepPrompts, ReceiptStatus
from pubswap_protocol.problems import Problem
from pubswap_protocol.schedule import public_step_number, staleness
from pubswap_protocol.tensors.responses import (
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)

log = logging.getLogger(__name__)


@dataclass
class PublicSteps:
    """A round's public steps; `until_saved` waits until the local step before is on disk."""

    context: MemberContext
    key: RoundKey
    gate: Gate
    until_saved: Callable[[], None]
    _ahead: dict[int, tuple[PublicStepPrompts, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api, self.run = self.context.api, self.context.run
        self.trainer, self.reporter = self.context.trainer, self.context.reporter

    def send_ahead(self, step: int) -> None:
        """Sample a public step and send our responses, before a private step overtakes it."""
        self._ahead = {step: self._sampled(step)}
        self._submit(*self._ahead[step])

    def make(self, step: int) -> StepMetrics:
        """Make a public step, or the rest of one that a private step overtook."""
        prompts, responses = self._ahead.pop(step) if step in self._ahead else self._sampled(step)
        self.reporter.doing(
            f"public step {prompts.public_step}: waiting for the other organisations"
        )
        received = self._received(step, prompts, responses)
        self.reporter.doing(f"public step {prompts.public_step}: updating")
        metrics = self.trainer.public_step(step, _problems(prompts), received.groups)
        return replace(metrics, waited=received.waited, exchange_refused=int(received.refused))

    def _sampled(self, step: int) -> tuple[PublicStepPrompts, bytes]:
        """A public step's prompts, and our encoded responses, saved before they are sent.

        The coordinator accepts no others afterwards, and an engine may not sample the same again.
        """
        public_step = public_step_number(self.run.settings, step)
        assert public_step is not None
        self.reporter.doing(f"public step {public_step}: sampling")
        prompts = self._prompts(public_step)
        problems, key, rules = _problems(prompts), self._key(prompts), self._rules(prompts)
        saved = self.context.journal.sampled(key)
        if saved is not None:
            self.trainer.resume_rollout(problems, decode_responses(saved, rules))
            return prompts, saved
        groups = self.trainer.public_rollout(step, problems, prompts.sampling_seed)
        body = encode_responses(rules.prompts, groups)
        # Do not save what the coordinator would refuse, because no restart could repair that.
        # The engine's responses were checked already, by the same form.
        decode_responses(body, rules)
        self.until_saved()
        self.context.journal.save_sampled(key, body)
        return prompts, body

    def _prompts(self, public_step: int) -> PublicStepPrompts:
        """A public step's prompts.

        Raises InvalidProblems for more than agreed or other ones, and WrongState for another
        step's, because responses to each step are sent only once in a round.
        """
        prompts = self.api.public_step_prompts(
            self.run.id, self.key.round, public_step, self.key.rollbacks
        )
        if (prompts.round, prompts.public_step) != (
            self.key.round,
            public_step,
        ) or not prompts.prompts:
            raise WrongState(
                f"The coordinator was asked for public step {public_step} of round "
                f"{self.key.round}, and answered with another or none."
            )
        limit = self.run.settings.grpo.prompts_per_step
        if len(prompts.prompts) > limit:
            raise InvalidProblems(
                f"The coordinator asks for responses to {len(prompts.prompts)} prompts in a public "
                f"step, but the run has {limit}. None was sampled or sent; ask its operator."
            )
        for entry in prompts.prompts:
            if [entry.problem] != [*self.context.public[entry.index : entry.index + 1]]:
                raise InvalidProblems(
                    f"The coordinator asks for responses to a prompt that is not number "
                    f"{entry.index} of the run's public set. None was sampled or sent; ask its "
                    "operator."
                )
        return prompts

    def _received(
        self, step: int, prompts: PublicStepPrompts, responses: bytes
    ) -> "GroupsReceived":
        """The groups to train on, and the seconds waited for them.

        They are saved before they are used, so that a restart trains on the same ones. If we were
        too late for the exchange, or its answer is malformed, they are our own; saving them makes
        that final, too.
        """
        key, rules = self._key(prompts), self._rules(prompts)
        body = saved = self.context.journal.received(key)
        waited, refused, began = 0.0, False, time.monotonic()
        try:
            if body is None:
                self.until_saved()
                body, waited = self._exchange(step, prompts, responses)
            groups = decode_responses(body, rules)
        except InvalidResponses as error:
            log.warning(
                "The coordinator's answer to public step %d is refused; training on our own "
                "responses. Tell its operator: %s",
                prompts.public_step,
                error.detail,
            )
            refused, waited = True, time.monotonic() - began
            body, groups = responses, decode_responses(responses, rules)
        if body is not saved:
            self.context.journal.save_received(key, body)
        return GroupsReceived(groups, waited, refused)

    def _exchange(
        self, step: int, prompts: PublicStepPrompts, responses: bytes
    ) -> tuple[bytes, float]:
        """The encoded groups to train on, the coordinator's or our own, and the seconds waited."""
        # An overtaken step's responses were sent before the step that overtook it.
        if not staleness(self.run.settings, step) and not self._submit(prompts, responses):
            return responses, 0.0
        started = time.monotonic()
        try:
            waiting = f"public step {prompts.public_step}: waiting for"
            answer = self.api.exchanged(
                self.run.id,
                self.key.round,
                prompts.public_step,
                lambda reason: self.reporter.doing(f"{waiting} {reason}"),
                seeds=prompts.sampling_seed is not None,
                max_bytes=self._rules(prompts).max_bytes(),
            )
        except RoundClosed as error:
            log.warning("%s", error.detail)
            return responses, time.monotonic() - started
        return answer, time.monotonic() - started

    def _submit(self, prompts: PublicStepPrompts, responses: bytes) -> bool:
        """Send our responses; returns whether they came in time for the exchange."""
        try:
            submit = partial(
                self.api.submit_responses, self.run.id, self.key.round, prompts.public_step
            )
            send = partial(submit, responses, self.key.rollbacks)
            receipt = self.gate.send(prompts.public_step, send)
        except IdempotencyMismatch as error:
            # The responses that we sent are lost here, but the exchange has them.
            log.warning("%s Continuing with the responses that the coordinator has.", error.detail)
            return True
        except InvalidResponses as error:
            log.warning(
                "The coordinator refuses our responses to public step %d; training on them alone. "
                "Tell its operator: %s",
                prompts.public_step,
                error.detail,
            )
            return False
        if receipt.status is ReceiptStatus.LATE:
            log.warning(
                "Public step %d closed without us; training on our own.", prompts.public_step
            )
        return receipt.status is not ReceiptStatus.LATE

    def _key(self, prompts: PublicStepPrompts) -> PublicStepKey:
        indices = [entry.index for entry in prompts.prompts]
        return PublicStepKey(self.key, prompts.public_step, indices)

    def _rules(self, prompts: PublicStepPrompts) -> ResponseRules:
        indices = [entry.index for entry in prompts.prompts]
        return ResponseRules.of(self.run.model, self.run.settings, indices)


@dataclass(frozen=True, slots=True)
class GroupsReceived:
    """The groups to train on; `refused` if an exchange's answer was not usable."""

    groups: list[list[Response]]
    waited: float = 0.0
    refused: bool = False


def _problems(prompts: PublicStepPrompts) -> list[Problem]:
    return [entry.problem for entry in prompts.prompts]
