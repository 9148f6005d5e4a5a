"""The policy at work beside a daemon: read from the state folder, asked before anything leaves."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from pubswap_client.consent.approval import decide, read_approval
from pubswap_client.consent.ask import Ask, ask_of
from pubswap_client.consent.local_policy import (
    COUNTERS,
    LocalPolicy,
    default_text,
    load_policy,
    policy_path,
)
from pubswap_client.consent.rules import NOT_TRUSTED, Code, Refusal, Sent, Work, judge, trusts
from pubswap_client.ledger.entry import described
from pubswap_client.ledger.ledger import Ledger, day_files, ledger_folder
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings, LedgerDamaged, RefusedByPolicy
from pubswap_protocol.files import write_whole
from pubswap_protocol.messages import RunView, SubmitUpdate

log = logging.getLogger(__name__)

AWAY = "away"
WORK = ("responses", "upload", "update")  # of a round
FREE = ("question", "enrolment", "hello")  # what a run that is refused is still sent
M = TypeVar("M", bound=BaseModel)


def local_now() -> datetime:
    return datetime.now().astimezone()


def sent_since(state: Path, now: datetime) -> Sent:
    """What was sent since the day (UTC) of `now` began.

    Should the clock have gone back, what was sent on later days counts too: no limit is passed by
    it. Entries are read as they are; `pubswap client audit verify` checks them. Raises
    LedgerDamaged for what is no entry: what was sent is not known then.
    """
    today = now.astimezone(UTC).date().isoformat()
    size, works, last = 0, set[Work](), None
    for path in day_files(ledger_folder(state)):
        if path.stem < today:
            continue
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue  # a crash came in the middle of it: nothing of it was sent
            try:
                entry = json.loads(line)
                size += entry["size"]
                last = max(last or entry["at"], entry["at"])
                if entry["kind"] in WORK and entry["round"] is not None:
                    works.add(_work(entry, entry["content"], entry["digest"]))
            except (ValueError, LookupError, TypeError):
                raise LedgerDamaged(
                    f"{path} is not as it was written, so that what was sent today is not known. "
                    "See `pubswap client audit verify`, and restore its files; or, to begin a new "
                    f"ledger, move {path.parent} away and keep it."
                ) from None
    return Sent(size, frozenset(works), None if last is None else datetime.fromisoformat(last))


def _work(what: Mapping[str, Any], content: Any, digest: str) -> Work:
    """What is sent of a round. An update is its adapter: sent again, it may tell other seconds.

    So is the upload that announces the adapter, whose update may never be asked for.
    """
    if isinstance(content, dict):
        digest = content.get("adapter") or content.get("digest") or digest
    return what["run"], what["round"], what.get("exchange"), digest


@dataclass
class Consent:
    """What one organisation allows one coordinator's run, of which it may train a lower `rank`.

    The files are read again each time: what a person changes holds from the next request on.
    """

    state: Path
    coordinator: str
    ledger: Ledger
    clock: Callable[[], datetime] = local_now
    rank: int | None = None
    _ask: Ask | None = field(default=None, init=False)
    _lacked: int = field(default=0, init=False)  # bytes of a request that was refused
    _refused: Work | None = field(default=None, init=False)  # what it had of a round
    _fault: str = field(default="", init=False)  # of the policy, as it was logged

    def check_coordinator(self) -> None:
        """Before anything is sent. Raises RefusedByPolicy, or InvalidSettings for a bad policy."""
        if not policy_path(self.state).exists():
            return
        if not trusts(load_policy(policy_path(self.state)), self.coordinator):
            raise RefusedByPolicy(
                f"{policy_path(self.state)} does not allow the coordinator {self.coordinator}; "
                "nothing was sent to it. Add it to `coordinators` if you trust it."
            )

    def attend(self, view: RunView) -> tuple[Refusal, ...]:
        """What is refused of a run as the coordinator shows it now, before its next round."""
        self._ask = ask_of(view, self.coordinator, self.rank)
        here = self._refused is not None and self._refused[:2] == (view.id, view.round)
        next_work = self._refused if here else None
        return self.refusals(max(self._ask.sent_bytes or 0, self._lacked), next_work)

    def refusals(self, next_bytes: int, next_work: Work | None = None) -> tuple[Refusal, ...]:
        """What is refused now, with this to be sent next; nothing before the first run."""
        if self._ask is None:
            return ()
        try:
            policy = load_policy(policy_path(self.state))
            approval = read_approval(self.state, self._ask.run or "")
        except InvalidSettings as error:
            return (self._unreadable(error),)
        self._fault, now = "", self.clock()
        counts = policy.max_bytes_a_day is not None or policy.max_rounds_a_day is not None
        sent = sent_since(self.state, now) if counts else Sent()
        return judge(policy, self._ask, approval, now, sent, next_bytes, next_work)

    def silence(self) -> tuple[Refusal, ...]:
        """Why this coordinator may not even be asked anything: nothing while it is trusted.

        A policy that is gone or mistyped may have trusted it no more.
        """
        path = policy_path(self.state)
        if self._ask is None and not path.exists():
            return ()  # the first one is made of what the run asks
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
        """Record in the ledger what may leave now, or raise RefusedByPolicy.

        Whatever the policy says, the coordinator hears that we are away, and why; while it is
        trusted, it is also asked what does not belong to a public step.
        """
        what, round_ = described(method, target), None
        if what["kind"] == "upload" and method == "POST" and self._ask is not None:
            what["round"] = round_ = self._ask.round
        if what["kind"] in FREE and "exchange" not in what:
            refused = self.silence()
        elif what["kind"] != AWAY:
            size, work = sum(map(len, pieces)), None
            if what["kind"] in WORK and "round" in what:
                body = b"".join(pieces)
                content = json.loads(body) if what["kind"] != "responses" else None
                work = _work(what, content, digest_of(body))
            if refused := self.refusals(size, work):
                self._lacked, self._refused = size, work
        else:
            refused = ()
        if refused:
            raise RefusedByPolicy(words(refused))
        self.ledger.record(method, target, media_type, pieces, round_)

    def buckets(self) -> tuple[str, ...]:
        """Where adapters may go beside the coordinator: nowhere unless the policy says so."""
        try:
            return load_policy(policy_path(self.state)).buckets
        except InvalidSettings:
            return ()  # it is said where it is waited for

    def withhold(self, message: M) -> M:
        """A message without the counters that may not be sent."""
        try:
            allowed = load_policy(policy_path(self.state)).counters
        except InvalidSettings:
            allowed = ()  # it is said where it is waited for
        return without(message, allowed)


def refused_now(state: Path, policy: LocalPolicy, ask: Ask) -> tuple[Refusal, ...]:
    """What a policy refuses of a run at this moment, for a person who asks."""
    now = local_now()
    approval, sent = read_approval(state, ask.run or ""), sent_since(state, now)
    return judge(policy, ask, approval, now, sent, ask.sent_bytes or 0)


def adopt(state: Path, view: RunView, coordinator: str) -> Path | None:
    """Give a state folder without a policy the default one, and take the run as approved.

    What a person has decided before stands. Returns the policy's path, or None if there was one.
    Raises NotSaved.
    """
    path = policy_path(state)
    if path.exists():
        return None
    ask = ask_of(view, coordinator)
    if read_approval(state, view.id) is None:
        decide(state, view.id, True, ask.facts(), ask.round)
    write_whole(path, default_text(ask).encode())
    return path


def without(message: M, allowed: str | Iterable[str]) -> M:
    """A message's copy with only these counters; those that it must have stay."""
    if allowed == "all":
        return message
    if isinstance(message, SubmitUpdate):
        return message.model_copy(update={"metrics": without(message.metrics, allowed)})
    left_out = {*COUNTERS} - {*allowed}
    fields = type(message).model_fields
    defaults = {name: fields[name].default for name in left_out & fields.keys()}
    return message.model_copy(update=defaults)


def words(refusals: Iterable[Refusal]) -> str:
    return " ".join(refusal.detail for refusal in refusals)
