"""Enforce the policy in the state folder before anything is sent."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pubswap_client.consent.approval import read_approval, save_approval
from pubswap_client.consent.ledger import Ledger, described
from pubswap_client.consent.policy import default_text, load_policy, policy_path
from pubswap_client.consent.proposal import Proposal, proposal_of
from pubswap_client.consent.rules import NOT_TRUSTED, Code, Refusal, judge, trusts
from pubswap_protocol.errors import InvalidSettings, OtherTerms, RefusedByPolicy
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import RunView

log = logging.getLogger(__name__)

AWAY = "away"
FREE = ("question", "enrolment", "hello")  # kinds that are sent even if the run is refused


@dataclass
class Consent:
    """What one organisation allows one coordinator's run.

    The files are read again each time, so a person's changes apply from the next request on.
    """

    state: Path
    coordinator: str
    ledger: Ledger
    _proposal: Proposal | None = field(default=None, init=False)
    _unsound: tuple[Refusal, ...] = field(default=(), init=False)  # why the run shows no terms
    _fault: str = field(default="", init=False)  # the policy's last logged fault

    def check_coordinator(self) -> None:
        """Raise RefusedByPolicy if it is not allowed, InvalidSettings if the policy is invalid."""
        if not policy_path(self.state).exists():
            return
        if not trusts(load_policy(policy_path(self.state)), self.coordinator):
            raise RefusedByPolicy(
                f"{policy_path(self.state)} does not allow the coordinator {self.coordinator}; "
                "nothing was sent to it. Add it to `coordinators` if you trust it."
            )

    def review(self, view: RunView) -> tuple[Refusal, ...]:
        """What is refused of a run as the coordinator shows it now, before its next round."""
        try:
            self._proposal, self._unsound = proposal_of(view, self.coordinator), ()
        except OtherTerms as error:
            self._unsound = (Refusal(Code.TERMS, error.detail),)
            return self._unsound
        return self.refusals()

    def refusals(self) -> tuple[Refusal, ...]:
        """What is refused now; nothing before the first `review`."""
        if self._unsound:
            return self._unsound
        if self._proposal is None:
            return ()
        try:
            refused = refused_now(self.state, self._proposal)
        except InvalidSettings as error:
            return (self._unreadable(error),)
        self._fault = ""
        return refused

    def coordinator_refusals(self) -> tuple[Refusal, ...]:
        """Why not even a question may be sent to this coordinator; empty while it is trusted.

        A missing or invalid policy counts as a refusal, because it may not trust the coordinator.
        """
        path = policy_path(self.state)
        if self._proposal is None and not path.exists():
            return ()  # the first policy is made from what the run asks
        try:
            policy = load_policy(path)
        except InvalidSettings as error:
            return (self._unreadable(error),)
        return () if trusts(policy, self.coordinator) else (NOT_TRUSTED,)

    def _unreadable(self, error: InvalidSettings) -> Refusal:
        if error.detail != self._fault:
            log.error("%s", error.detail)
        self._fault = error.detail
        return Refusal(Code.UNREADABLE, "This organisation's policy cannot be read.")

    def record(self, method: str, target: str, media_type: str, pieces: Iterable[bytes]) -> None:
        """Record a request in the ledger if it may be sent now, or raise RefusedByPolicy.

        A message that we are away, and why, may always be sent. Enrolment, hello, and questions
        outside a public step need only a trusted coordinator.
        """
        what = described(method, target)
        refused: tuple[Refusal, ...] = ()
        if what["kind"] in FREE and what["public_step"] is None:
            refused = self.coordinator_refusals()
        elif what["kind"] != AWAY:
            refused = self.refusals()
        if refused:
            raise RefusedByPolicy(words(refused))
        self.ledger.record(method, target, media_type, pieces)

    def buckets(self) -> tuple[str, ...]:
        """Prefixes of buckets that adapters may go to directly; none unless the policy has some."""
        try:
            return load_policy(policy_path(self.state)).buckets
        except InvalidSettings:
            return ()  # `refusals` reports the fault


def refused_now(state: Path, proposal: Proposal) -> tuple[Refusal, ...]:
    """What policy and approval refuse of a run now; raises InvalidSettings if one is unreadable."""
    return judge(load_policy(policy_path(state)), proposal, read_approval(state, proposal.view.id))


def adopt(state: Path, view: RunView, coordinator: str) -> Path | None:
    """Write a default policy if the state folder has none, and approve the run.

    A person's earlier decision stands. Returns the policy's path, or None if there was one. Raises
    NotSaved, or OtherTerms if it is shown otherwise than in its terms.
    """
    path = policy_path(state)
    if path.exists():
        return None
    proposal = proposal_of(view, coordinator)
    if read_approval(state, view.id) is None:
        save_approval(state, proposal)
    write_whole(path, default_text(proposal).encode())
    return path


def words(refusals: Iterable[Refusal]) -> str:
    return " ".join(refusal.detail for refusal in refusals)
