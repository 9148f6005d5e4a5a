"""Enforce the policy in the state folder before anything is sent."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pubswap_client.consent.approval import read_approval, save_approval
from pubswap_client.consent.ledger import Ledger, described, sent_since
from pubswap_client.consent.policy import LocalPolicy, default_text, load_policy, policy_path
from pubswap_client.consent.proposal import Proposal, proposal_of
from pubswap_client.consent.rules import NOT_TRUSTED, Code, Refusal, judge, trusts
from pubswap_protocol.errors import InvalidSettings, OtherTerms, RefusedByPolicy
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import RunView

log = logging.getLogger(__name__)

AWAY = "away"
FREE = ("question", "enrolment", "hello")  # kinds that are sent even if the run is refused


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Consent:
    """What one organisation allows one coordinator's run, which it may train at a lower `rank`.

    The files are read again each time, so a person's changes apply from the next request on.
    """

    state: Path
    coordinator: str
    ledger: Ledger
    clock: Callable[[], datetime] = utc_now
    rank: int | None = None
    _proposal: Proposal | None = field(default=None, init=False)
    _unsound: tuple[Refusal, ...] = field(default=(), init=False)  # why the run shows no terms
    _refused_bytes: int = field(default=0, init=False)  # bytes of the last refused request
    _fault: str = field(default="", init=False)  # the policy's last logged fault
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, init=False)

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
            self._proposal, self._unsound = proposal_of(view, self.coordinator, self.rank), ()
        except OtherTerms as error:
            self._unsound = (Refusal(Code.TERMS, error.detail),)
            return self._unsound
        return self.refusals(max(self._proposal.sent_bytes or 0, self._refused_bytes))

    def refusals(self, next_bytes: int) -> tuple[Refusal, ...]:
        """What is refused now if this is sent next; nothing before the first `review`."""
        if self._unsound:
            return self._unsound
        if self._proposal is None:
            return ()
        try:
            policy = load_policy(policy_path(self.state))
            approval = read_approval(self.state, self._proposal.run or "")
        except InvalidSettings as error:
            return (self._unreadable(error),)
        self._fault = ""
        counts = policy.max_bytes_a_day is not None
        sent = sent_since(self.state, self.clock()) if counts else 0
        return judge(policy, self._proposal, approval, sent, next_bytes)

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
        # One at a time, or two requests at once would each fit in the day's last bytes.
        with self._one_at_a_time:
            what, round_ = described(method, target), None
            refused: tuple[Refusal, ...] = ()
            if what["kind"] in FREE and what["public_step"] is None:
                refused = self.coordinator_refusals()
            elif what["kind"] != AWAY:
                size = sum(map(len, pieces))
                if refused := self.refusals(size):
                    self._refused_bytes = size
            if refused:
                raise RefusedByPolicy(words(refused))
            if what["kind"] == "upload" and method == "POST" and self._proposal is not None:
                round_ = self._proposal.round
            self.ledger.record(method, target, media_type, pieces, round_)

    def buckets(self) -> tuple[str, ...]:
        """Prefixes of buckets that adapters may go to directly; none unless the policy has some."""
        try:
            return load_policy(policy_path(self.state)).buckets
        except InvalidSettings:
            return ()  # `refusals` reports the fault


def refused_now(state: Path, policy: LocalPolicy, proposal: Proposal) -> tuple[Refusal, ...]:
    """What a policy refuses of a run at this moment, for a command."""
    approval, sent = read_approval(state, proposal.run or ""), sent_since(state, utc_now())
    return judge(policy, proposal, approval, sent, proposal.sent_bytes or 0)


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
        save_approval(state, proposal, proposal.round)
    write_whole(path, default_text(proposal).encode())
    return path


def words(refusals: Iterable[Refusal]) -> str:
    return " ".join(refusal.detail for refusal in refusals)
