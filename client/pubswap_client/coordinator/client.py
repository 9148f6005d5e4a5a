"""The coordinator's API: one method for each endpoint, and everything that is sent to it."""

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from pubswap_client.coordinator.connection import Connection
from pubswap_client.coordinator.retry import PollThrottle
from pubswap_client.coordinator.route import LONG_POLL_SECONDS
from pubswap_client.coordinator.transfers import (
    LARGEST_BYTES,
    BlobRequests,
    OnBytes,
    download,
    upload,
)
from pubswap_protocol import messages, paths
from pubswap_protocol.bounds import MAX_NUMBER, MAX_SET_BYTES, plain, printable
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    HelloNeeded,
    ProtocolMismatch,
    PubSwapError,
    RunCancelled,
    ServerFault,
)
from pubswap_protocol.messages import Receipt, RunView

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
_LOOKS = 20  # attempts to read a run that keeps changing


class ProblemSet(NamedTuple):
    """A set as JSONL, and the versions of the verifiers that it names, as the coordinator's."""

    data: bytes
    versions: str | None = None


class CoordinatorClient(Connection):
    """The endpoints used by operators and members."""

    _waits_for: str | None = None  # the last reason logged, to log each only once
    _hello: messages.Hello | None = None  # the last one, unless it was refused

    def version(self) -> messages.Version:
        return self.call(messages.Version, "GET", paths.VERSION)

    def check_version(self) -> None:
        """Raises ProtocolMismatch unless the coordinator speaks this client's protocol."""
        version = self.version().protocol
        if version != paths.PROTOCOL_VERSION:
            raise ProtocolMismatch(
                f"The coordinator at {self.url} speaks protocol {version}, this client "
                f"{paths.PROTOCOL_VERSION}; install the coordinator's version of pubswap."
            )

    # The operator

    def create_run(self, body: messages.CreateRun) -> RunView:
        return self.call(RunView, "POST", paths.RUNS, body, _new_key())

    def runs(self) -> list[RunView]:
        """All runs, newest first, without their members."""
        runs: dict[str, RunView] = {}
        cursor = None
        while page := self.call(messages.RunList, "GET", paths.RUNS, after=cursor).runs:
            if any(each.id in runs for each in page):
                raise _endless(paths.RUNS)
            runs |= {each.id: each for each in page}
            cursor = page[-1].id
        return [*runs.values()]

    def run(self, run: str) -> RunView:
        """A run by its id or name; a member's by its id alone, to which its decisions belong."""
        path = paths.RUN.format(run=run)
        view = self.call(RunView, "GET", path)
        if run != view.id and (self._on_send is not None or run != view.name):
            raise ServerFault(f"{path} was answered with another run: {view.name} ({view.id}).")
        return view

    def rounds(
        self, run: str, after: int = -1, last: int = MAX_NUMBER
    ) -> Iterator[messages.RoundSummary]:
        """A run's rounds after `after` and up to `last`, in order, fetched page by page."""
        path = paths.ROUNDS.format(run=run)
        while page := self.call(messages.RoundList, "GET", path, after=after).rounds:
            for summary in page:
                if summary.round <= after:
                    raise _endless(path)
                if summary.round > last:
                    return
                after = summary.round
                yield summary

    def steps(self, run: str) -> Iterator[messages.StepPoint]:
        """The kept steps of a run by member, round and step, fetched page by page."""
        path, cursor = paths.STEPS.format(run=run), None
        # The order of members is the database's: with a locale, banka is before bank-b.
        last: dict[str, tuple[int, int]] = {}
        while page := self.call(messages.StepList, "GET", path, after=cursor).steps:
            for point in page:
                if (point.round, point.step) <= last.get(point.member, (-1, -1)):
                    raise _endless(path)
                last[point.member] = point.round, point.step
                yield point
            cursor = f"{page[-1].member}:{page[-1].round}:{page[-1].step}"

    def whole_run(self, run: str) -> messages.WholeRun:
        """One run with all its rounds, consistently: fetched again if the run moved meanwhile."""
        view = self.run(run)
        for _ in range(_LOOKS):
            last = min(view.round, view.settings.rounds)
            rounds, previous = list(self.rounds(view.id, last=last)), (view.state, view.round)
            view = self.run(view.id)
            if (view.state, view.round) == previous:
                return messages.WholeRun(**dict(view), rounds=rounds)
        raise ServerFault(f"Run {view.name} changed every time it was fetched; try again.")

    def put_tokenizer(self, run: str, data: bytes) -> messages.BlobReceipt:
        """Send the base model's tokenizer.json, with which the coordinator decodes responses."""
        return self.call(messages.BlobReceipt, "PUT", paths.RUN_TOKENIZER.format(run=run), data)

    def put_set(self, run: str, kind: messages.SetKind, data: bytes) -> messages.SetReceipt:
        path = paths.RUN_SET.format(run=run, kind=kind.value)
        return self.call(messages.SetReceipt, "PUT", path, data)

    def put_initial_adapter(self, run: str, data: bytes) -> messages.BlobReceipt:
        """Send the adapter that the run starts from; its digest is in the run's settings."""
        return self.call(messages.BlobReceipt, "PUT", paths.RUN_INITIAL.format(run=run), data)

    def move_run(self, run: str, path: str) -> RunView:
        """Open, start, pause, resume, cancel or archive a run; `path` is one of paths.RUN_*."""
        return self.call(RunView, "POST", path.format(run=run))

    def change_run(self, run: str, body: messages.ChangeRun) -> RunView:
        return self.call(RunView, "PATCH", paths.RUN_SETTINGS.format(run=run), body)

    def delete_run(self, run: str) -> None:
        self.request("DELETE", paths.RUN.format(run=run))

    def invite(self, run: str, body: messages.CreateInvite) -> messages.Invite:
        return self.call(messages.Invite, "POST", paths.RUN_INVITES.format(run=run), body)

    def reissue(self, run: str, member: str, body: messages.Reissue) -> messages.Invite:
        """A one-time invite for an enrolled member; using it ends the old token."""
        path = paths.RUN_MEMBER_REISSUE.format(run=run, member=member)
        return self.call(messages.Invite, "POST", path, body)

    def members(self, run: str) -> messages.MemberList:
        return self.call(messages.MemberList, "GET", paths.RUN_MEMBERS.format(run=run))

    def revoke(self, run: str, member: str) -> None:
        self.request("DELETE", paths.RUN_MEMBER.format(run=run, member=member))

    def exclude(self, run: str, round_: int, member: str) -> RunView:
        path = paths.EXCLUDE.format(run=run, round=round_, member=member)
        return self.call(RunView, "POST", path)

    def roll_back(self, run: str, body: messages.Rollback) -> RunView:
        """Begin the round after `body.to` again."""
        return self.call(RunView, "POST", paths.RUN_ROLLBACK.format(run=run), body)

    def decide(self, run: str, member: str, path: str) -> None:
        """Suspend or reinstate a member; `path` is one of paths.RUN_MEMBER_*."""
        self.request("POST", path.format(run=run, member=member))

    def global_adapter(self, run: str, which: str) -> bytes:
        """The `final`, the `best` or a round's global adapter, as safetensors."""
        return self.adapter_of_round(run, which)[1]

    def adapter_of_round(
        self, run: str, which: str, max_bytes: int = LARGEST_BYTES
    ) -> tuple[int, bytes]:
        """An adapter as in `global_adapter`, preceded by its round.

        Raises ServerFault if it has more than `max_bytes`.
        """
        path = paths.RUN_ADAPTER.format(run=run, which=which)
        first = self.request("GET", path, headers={"Range": "bytes=0-0"}, max_bytes=max_bytes)
        number = first.headers.get(paths.ROUND_HEADER, "")
        if not re.fullmatch(r"[0-9]{1,10}", number):
            raise ServerFault(f"{path} answered without {paths.ROUND_HEADER}.")
        if first.status_code != 206:  # a file generated as it is sent, which has no ranges
            return int(number), first.content
        digest = first.headers.get("ETag", "").strip('"')
        requests = BlobRequests(self, run, path, max_bytes)
        return int(number), bytes(download(requests, digest, self.backoff))

    def add_viewer(self, name: str) -> messages.ViewerToken:
        """Let a person view the dashboard; the token is shown once."""
        body = messages.CreateViewer(name=name)
        return self.call(messages.ViewerToken, "POST", paths.VIEWERS, body)

    def viewers(self) -> list[messages.Viewer]:
        return self.call(messages.ViewerList, "GET", paths.VIEWERS).viewers

    def remove_viewer(self, name: str) -> None:
        self.request("DELETE", paths.VIEWER.format(viewer=name))

    def events(self, run: str, after: int = 0) -> messages.Events:
        """The events of a run's log after the event with the id `after`."""
        path = paths.RUN_EVENTS.format(run=run)
        page = self.call(messages.Events, "GET", path, after=after)
        ids = [after, *(event.id for event in page.events)]
        if any(later <= earlier for earlier, later in pairwise(ids)):
            raise _endless(path)
        return page

    def evaluation(self, run: str, round_: int) -> messages.FullEvaluation:
        """A round's evaluation and some of its responses."""
        path = paths.EVALUATION.format(run=run, round=round_)
        return self.call(messages.FullEvaluation, "GET", path)

    # A member

    def enroll(self, invite: str, key: str | None = None) -> messages.Membership:
        """Exchange an invite for a token; repeating it with the same key gives the same token."""
        body = messages.Enroll(invite=invite)
        return self.call(messages.Membership, "POST", paths.ENROLL, body, key or _new_key())

    def hello(self, run: str, body: messages.Hello) -> None:
        """Say which base model and verifier this member has; raises BaseModelMismatch."""
        self._hello = None
        self.request("POST", paths.HELLO.format(run=run), body)
        self._hello = body

    def away(self, run: str, reason: messages.Away) -> None:
        """Declare this member away until its next hello, so that nobody waits for it, and why."""
        self.request("POST", paths.AWAY.format(run=run), reason)

    def link(self, run: str) -> messages.OwnLink:
        """A link for a browser to this member's own page."""
        return self.call(messages.OwnLink, "POST", paths.LINK.format(run=run))

    def task(self, run: str, wait: float = LONG_POLL_SECONDS) -> messages.Task:
        """The next task; the answer may take up to `wait` seconds.

        After an upgrade that changed its verifier, the coordinator asks for another hello. Raises
        Conflict if it then refuses this member's version.
        """
        task = self._task(run, wait)
        self._log_wait(task.waits_for)
        return task

    def paused(self, run: str, wait: float = 0.0) -> bool:
        """Whether the operator has paused the run; raises RunCancelled if it was cancelled.

        While it is paused, the answer may take up to `wait` seconds.
        """
        task = self._task(run, wait)
        if task.state is messages.RunState.CANCELLED:
            raise RunCancelled()
        return task.paused

    def _task(self, run: str, wait: float) -> messages.Task:
        ask = partial(self.call, messages.Task, "GET", paths.TASK.format(run=run), wait=wait)
        try:
            return ask()
        except HelloNeeded:
            if self._hello is None:
                raise
            self.hello(run, self._hello)
            return ask()

    def heartbeat(self, run: str, body: messages.Progress) -> None:
        """Report progress in a single, short try, because another heartbeat follows."""
        path = paths.HEARTBEAT.format(run=run)
        json = body.model_dump(mode="json", exclude_none=True)
        self.once("POST", path, json=json, timeout=HEARTBEAT_SECONDS)

    def blob(
        self, run: str, digest: str, on_bytes: OnBytes | None = None, max_bytes: int = LARGEST_BYTES
    ) -> memoryview:
        """A blob's bytes; raises DigestMismatch if they do not have this digest.

        Raises ServerFault for more than `max_bytes`.
        """
        return download(
            BlobRequests(self, run, max_bytes=max_bytes), digest, self.backoff, on_bytes
        )

    def put_blob(self, run: str, data: bytes | memoryview, on_bytes: OnBytes | None = None) -> str:
        """Send a blob unless the coordinator has it; returns its digest."""
        digest = digest_of(data)
        upload(BlobRequests(self, run), data, digest, self.backoff, on_bytes)
        return digest

    def submit_update(
        self,
        run: str,
        round_: int,
        body: messages.SubmitUpdate,
        start: str | None = None,
        rollbacks: int | None = None,
    ) -> Receipt:
        """Hand in an update that was trained from the adapter `start`.

        Raises RoundClosed if the run was rolled back since the task, which had this many
        `rollbacks`; so do `public_step_prompts` and `submit_responses`.
        """
        path = paths.UPDATE.format(run=run, round=round_)
        return self.call(Receipt, "POST", path, body, start=start, rollbacks=rollbacks)

    def public_step_prompts(
        self, run: str, round_: int, public_step: int, rollbacks: int | None = None
    ) -> messages.PublicStepPrompts:
        path = paths.PUBLIC_STEP.format(run=run, round=round_, public_step=public_step)
        return self.call(messages.PublicStepPrompts, "GET", path, rollbacks=rollbacks)

    def submit_responses(
        self, run: str, round_: int, public_step: int, data: bytes, rollbacks: int | None = None
    ) -> Receipt:
        path = paths.PUBLIC_STEP_RESPONSES.format(run=run, round=round_, public_step=public_step)
        return self.call(Receipt, "POST", path, data, rollbacks=rollbacks)

    def exchanged(
        self,
        run: str,
        round_: int,
        public_step: int,
        on_wait: Callable[[str], None] = lambda reason: None,
        *,
        seeds: bool = False,
        max_bytes: int | None = None,
    ) -> bytes:
        """Wait until the exchange is closed; returns the responses to train on.

        `on_wait` is called repeatedly with the reason for waiting. With `seeds`, responses include
        their seeds and their donors' numbers. Raises RoundClosed if this member's responses were
        not in the exchange, ServerFault for more than `max_bytes`.
        """
        path = paths.PUBLIC_STEP_EXCHANGED.format(run=run, round=round_, public_step=public_step)
        throttle = PollThrottle()
        while True:
            reply = self.request(
                "GET", path, max_bytes=max_bytes, wait=LONG_POLL_SECONDS, seeds=seeds or None
            )
            if reply.status_code == 200:
                return reply.content
            reason = printable(reply.headers.get(paths.WAITS_HEADER, "the other organisations"))
            self._log_wait(reason)
            on_wait(reason)
            throttle.idle()

    def problem_set(self, run: str, kind: messages.SetKind) -> ProblemSet:
        """The public set, or the test set for an evaluator."""
        path = paths.RUN_SET.format(run=run, kind=kind.value)
        reply = self.request("GET", path, max_bytes=MAX_SET_BYTES)
        versions = reply.headers.get(paths.VERIFIERS_HEADER)
        return ProblemSet(reply.content, None if versions is None else plain(versions))

    def submit_evaluation(self, run: str, round_: int, body: messages.Evaluation) -> None:
        self.request("POST", paths.EVALUATION.format(run=run, round=round_), body)

    def _log_wait(self, reason: str | None) -> None:
        if reason is not None and reason != self._waits_for:
            log.info("Waiting for %s.", reason)
        self._waits_for = reason


def wait_until_ready(
    client: CoordinatorClient, seconds: float, check: Callable[[], None] = lambda: None
) -> None:
    """Return when the coordinator answers; raises Unreachable if it does not in this time.

    `check` is called between tries and may raise, for example because the server has died.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            client.version()
            return
        except PubSwapError as error:
            if not error.retryable or time.monotonic() > deadline:
                raise
        check()
        time.sleep(0.1)


def _endless(path: str) -> ServerFault:
    return ServerFault(f"{path} answered with a page that does not continue the one before it.")


def _new_key() -> str:
    """An idempotency key: the coordinator recognises a request that is sent again."""
    return secrets.token_urlsafe(32)
