"""Stay away while the policy refuses, tell the coordinator why, and come back."""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pubswap_client.consent.consent import Consent, words
from pubswap_client.consent.rules import CLIENTS, Code, Refusal
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol.errors import RefusedByPolicy
from pubswap_protocol.messages import Away, Hello, RunView, Task
from pubswap_protocol.terms import differences

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between looks at the state folder's files
ASK_SECONDS = 30.0  # between requests to the coordinator for the run
BEGUN = "The daemon of this organisation has begun under other terms than are approved now:"
_MAX_DETAIL = 400  # characters of `Away.detail`


@dataclass
class Participation:
    """Keeps a member away while its policy refuses the run.

    `trains` is the run as the daemon trains it, and `hello` its hello on return, once known.
    """

    api: CoordinatorClient
    run: str
    consent: Consent
    hello: Hello | None = None
    trains: RunView | None = None
    view: RunView | None = field(default=None, init=False)  # as the coordinator last showed it
    _asked_at: float = field(default=0.0, init=False)

    def wait(self, doing: Callable[[str], None] = lambda what: None) -> bool:
        """Wait until the policy allows the run's next round, or the run has ended.

        Returns whether it had to wait, so that the task may have changed.
        """
        sent: Away | None = None
        self.view = None
        while refusals := self._refusals(back=sent is not None):
            away = away_message(refusals)
            if away != sent:
                self.api.away(self.run, away)
                log.warning("Away (%s): %s%s", away.code, words(refusals), _remedy(away.code))
                sent = away
            doing(f"away ({away.code}): {words(refusals)}")
            time.sleep(LOOK_SECONDS)
        return sent is not None

    def sit_out(self, task: Task, fault: str, doing: Callable[[str], None]) -> None:
        """Stay away from a round that cannot be trained, until the coordinator has another task.

        For example after a rollback. The policy is observed meanwhile.
        """
        log.warning(
            "Away (%s) until round %d or its adapter is another.", Code.DIVERGED, task.round
        )
        while True:
            # Each time, because the coordinator may have asked for a hello, which ends the absence.
            self.api.away(self.run, away_message((Refusal(Code.DIVERGED, fault),)))
            doing(f"away ({Code.DIVERGED}): {fault}")
            time.sleep(ASK_SECONDS)
            try:
                now = self.api.task(self.run, 0.0)
                if not same_work(now, task):
                    if self.hello is not None and not now.state.ended:
                        self.api.hello(self.run, self.hello)
                    return
            except RefusedByPolicy:
                self.wait(doing)

    def _refusals(self, back: bool) -> tuple[Refusal, ...]:
        """What is refused now. With `back`, say hello again once nothing is refused.

        Nothing is refused of a run that has ended.
        """
        if distrusted := self.consent.coordinator_refusals():
            self.view = None
            return distrusted
        try:
            if self.view is None or time.monotonic() - self._asked_at > ASK_SECONDS:
                self.view, self._asked_at = self.api.run(self.run), time.monotonic()
            refusals = self._refused_of(self.view)
            if self.view.state.ended:
                return ()
            if refusals or self.hello is None:
                return refusals
            if back:
                self.api.hello(self.run, self.hello)
                log.info("Back in run %s.", self.view.name)
        except RefusedByPolicy:  # the policy has changed since it was read
            return self._refusals(back)
        return refusals

    def _refused_of(self, shown: RunView) -> tuple[Refusal, ...]:
        """What is refused of the run as it is shown now, and as the daemon trains it.

        The latter comes last, so that requests are judged by it: a coordinator may show one run and
        have us train another.
        """
        refusals = self.consent.review(shown)
        if self.trains is not None:
            begun = () if refusals else self._begun_otherwise(self.trains, shown)
            trained = self.consent.review(self.trains.model_copy(update={"round": shown.round}))
            if begun:  # which says why the terms that it trains under are not those approved
                trained = tuple(one for one in trained if one.code is not Code.NOT_APPROVED)
            refusals += begun + trained
        return tuple(dict.fromkeys(refusals))

    def _begun_otherwise(self, trained: RunView, shown: RunView) -> tuple[Refusal, ...]:
        """Why a daemon cannot go on under the terms that are approved by now.

        Another number of clients changes nothing for it.
        """
        changed = differences(trained.terms or "", shown.terms or "").keys()
        if changed - {CLIENTS}:
            return (Refusal(Code.NOT_APPROVED, f"{BEGUN} {', '.join(changed)}. Start it again."),)
        self.trains = shown
        return ()


def same_work(task: Task, other: Task) -> bool:
    """Whether two tasks are to train the same round from the same adapter."""
    names = ("kind", "round", "adapter", "rollbacks")
    return all(getattr(task, name) == getattr(other, name) for name in names)


def away_message(refusals: tuple[Refusal, ...]) -> Away:
    """The message to the coordinator: the first reason's code, and all reasons in words."""
    text = re.sub(r"[^ -~]", "?", words(refusals))
    return Away(code=refusals[0].code, detail=text[:_MAX_DETAIL])


def _remedy(code: str) -> str:
    if code in (Code.NOT_APPROVED, Code.DENIED):
        return " Decide with `pubswap client approve`."
    return " See `pubswap client policy check`."
