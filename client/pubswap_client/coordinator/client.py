"""Everything that leaves this machine leaves here: one method for each endpoint, over httpx."""

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from pubswap_client.coordinator.retry import FOREVER, Backoff, retrying
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_client.coordinator.transfers import Body, Moved, download, untold, upload
from pubswap_client.coordinator.waiting import Waiting
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import (
    InvalidSettings,
    ProblemDetails,
    ProtocolMismatch,
    PubSwapError,
    ServerFault,
    UnknownSetting,
    Unreachable,
    error_for,
)
from pubswap_protocol.messages import (
    BindCertificate,
    BlobReceipt,
    CreateInvite,
    CreateRun,
    Enroll,
    Evaluation,
    Events,
    Hello,
    Invite,
    MemberList,
    Membership,
    OpenUpload,
    Progress,
    Receipt,
    Reissue,
    Rollback,
    RoundList,
    RoundSummary,
    RunList,
    RunView,
    SetKind,
    SetReceipt,
    SubmitUpdate,
    SwapPrompts,
    Task,
    UploadSession,
    Version,
    WholeRun,
)

M = TypeVar("M", bound=BaseModel)

LONG_POLL_SECONDS = 25.0
HEARTBEAT_SECONDS = 5.0
# Larger blocks are sent no faster, and a socket that takes a part of one makes httpcore copy the
# rest of it.
BLOCK_BYTES = 1 << 18
LONGEST_RETRY_AFTER = 3600.0


class CoordinatorClient:
    """A coordinator, as seen by the holder of one token. Synchronous, and closed after use."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        backoff: Backoff = FOREVER,
        transport: httpx.BaseTransport | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        headers = {paths.PROTOCOL_HEADER: paths.PROTOCOL_VERSION}
        if token and not (token.isascii() and token.isprintable()):
            raise InvalidSettings("The token has characters that no token has; copy all of it.")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self.url = url.rstrip("/")
        self._backoff = backoff
        self._http = httpx.Client(
            base_url=_address(self.url),
            headers=headers,
            transport=transport,
            verify=tls.context() if tls else True,
            timeout=httpx.Timeout(LONG_POLL_SECONDS + 30, connect=10),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # The handshake

    def version(self) -> Version:
        """What the coordinator runs."""
        return self._get(Version, paths.VERSION)

    def check_version(self) -> None:
        """Raises ProtocolMismatch unless the coordinator speaks this client's protocol."""
        theirs = self.version().protocol
        if theirs != paths.PROTOCOL_VERSION:
            raise ProtocolMismatch(
                f"The coordinator at {self.url} speaks protocol {theirs}, this client "
                f"{paths.PROTOCOL_VERSION}; install the same major version of pubswap."
            )

    # The operator

    def create_run(self, body: CreateRun) -> RunView:
        """Create a run; nothing starts yet."""
        return self._send(RunView, "POST", paths.RUNS, body, _new_key())

    def runs(self) -> list[RunView]:
        """All runs, newest first, without their members."""
        found: list[RunView] = []
        while page := self._get(RunList, paths.RUNS, {"after": found[-1].id} if found else {}).runs:
            found += page
        return found

    def run(self, run: str) -> RunView:
        """One run."""
        return self._get(RunView, paths.RUN.format(run=run))

    def rounds(self, run: str, after: int = -1) -> Iterator[RoundSummary]:
        """A run's rounds behind `after`, in order, asked for page by page."""
        path = paths.ROUNDS.format(run=run)
        while page := self._get(RoundList, path, {"after": after}).rounds:
            yield from page
            after = page[-1].round

    def whole_run(self, run: str) -> WholeRun:
        """One run with all its rounds, which fit together: asked for again if it moved between."""
        view = self.run(run)
        while True:
            rounds, before = list(self.rounds(view.id)), (view.state, view.round)
            view = self.run(view.id)
            if (view.state, view.round) == before:
                return WholeRun(**dict(view), rounds=rounds)

    def put_tokenizer(self, run: str, data: bytes) -> BlobReceipt:
        """Send the base model's tokenizer.json, with which the coordinator decodes responses."""
        return self._send(BlobReceipt, "PUT", paths.RUN_TOKENIZER.format(run=run), data)

    def put_set(self, run: str, kind: SetKind, data: bytes) -> SetReceipt:
        """Send the public or the test set as JSONL."""
        return self._send(SetReceipt, "PUT", paths.RUN_SET.format(run=run, kind=kind.value), data)

    def move_run(self, run: str, path: str) -> RunView:
        """Open, start, pause, resume, cancel or archive a run; `path` is one of paths.RUN_*."""
        return self._send(RunView, "POST", path.format(run=run))

    def delete_run(self, run: str) -> None:
        """Delete a run that has ended, by its id."""
        self._request("DELETE", paths.RUN.format(run=run))

    def invite(self, run: str, body: CreateInvite) -> Invite:
        """A one-time invite."""
        return self._send(Invite, "POST", paths.RUN_INVITES.format(run=run), body)

    def reissue(self, run: str, member: str, body: Reissue) -> Invite:
        """A one-time invite for a member that has enrolled; using it ends the old token."""
        path = paths.RUN_MEMBER_REISSUE.format(run=run, member=member)
        return self._send(Invite, "POST", path, body)

    def members(self, run: str) -> MemberList:
        """Who takes part, and where they are."""
        return self._get(MemberList, paths.RUN_MEMBERS.format(run=run))

    def revoke(self, run: str, member: str) -> None:
        """Make a member's token worthless."""
        self._request("DELETE", paths.RUN_MEMBER.format(run=run, member=member))

    def exclude(self, run: str, round_: int, member: str) -> RunView:
        """Leave a member's update out of the round under way."""
        return self._send(
            RunView, "POST", paths.EXCLUDE.format(run=run, round=round_, member=member)
        )

    def roll_back(self, run: str, body: Rollback) -> RunView:
        """Begin the round after `body.to` again."""
        return self._send(RunView, "POST", paths.RUN_ROLLBACK.format(run=run), body)

    def decide(self, run: str, member: str, path: str) -> None:
        """Suspend or reinstate a member; `path` is one of paths.RUN_MEMBER_*."""
        self._request("POST", path.format(run=run, member=member))

    def bind_certificate(self, run: str, member: str, sha256: str | None) -> None:
        """Bind a member's token to another client certificate, or to none."""
        path = paths.RUN_MEMBER_CERTIFICATE.format(run=run, member=member)
        self._request("PUT", path, json=BindCertificate(sha256=sha256).model_dump())

    def global_adapter(self, run: str, which: str) -> bytes:
        """The `final`, the `best` or a round's global adapter, as safetensors."""
        return self.adapter_of_round(run, which)[1]

    def adapter_of_round(self, run: str, which: str) -> tuple[int, bytes]:
        """A global adapter as `global_adapter` gives it, and the round that it is of."""
        path = paths.RUN_ADAPTER.format(run=run, which=which)
        first = self._request("GET", path, headers={"Range": "bytes=0-0"})
        number = first.headers.get(paths.ROUND_HEADER, "")
        if not number.isdecimal():
            raise ServerFault(f"{path} answered without {paths.ROUND_HEADER}.")
        if first.status_code != 206:  # a file that is made as it is sent, and begun nowhere else
            return int(number), first.content
        digest = first.headers.get("ETag", "").strip('"')
        return int(number), bytes(download(_BlobRequests(self, run, path), digest, self._backoff))

    def events(self, run: str, after: int = 0) -> Events:
        """The run's log after an event's id."""
        return self._get(Events, paths.RUN_EVENTS.format(run=run), {"after": after})

    # A member

    def enroll(self, invite: str, key: str | None = None) -> Membership:
        """Exchange an invite for a token; again with the same key, it is the same one."""
        body = Enroll(invite=invite)
        return self._send(Membership, "POST", paths.ENROLL, body, key or _new_key())

    def rotate(self) -> Membership:
        """A new token in place of this one."""
        return self._send(Membership, "POST", paths.TOKEN, key=_new_key())

    def hello(self, run: str, body: Hello) -> None:
        """Say which base model and verifier this member has; raises BaseModelMismatch."""
        self._request("POST", paths.HELLO.format(run=run), json=body.model_dump(mode="json"))

    def task(self, run: str, wait: float = LONG_POLL_SECONDS) -> Task:
        """What to do now; the answer may take up to `wait` seconds."""
        return self._get(Task, paths.TASK.format(run=run), {"wait": wait})

    def heartbeat(self, run: str, body: Progress) -> None:
        """Report progress: one try, and no long one; another heartbeat follows."""
        path = paths.HEARTBEAT.format(run=run)
        json = body.model_dump(mode="json", exclude_none=True)
        self._once("POST", path, json=json, timeout=HEARTBEAT_SECONDS)

    def blob(self, run: str, digest: str, moved: Moved = untold) -> memoryview:
        """A blob's bytes; raises DigestMismatch if they are not what the digest names."""
        return download(_BlobRequests(self, run), digest, self._backoff, moved)

    def put_blob(
        self,
        run: str,
        data: bytes | memoryview,
        moved: Moved = untold,
        digest: str | None = None,
    ) -> str:
        """Send a blob unless the coordinator has it; returns its digest, which may be given."""
        digest = digest or digest_of(data)
        upload(_BlobRequests(self, run), data, digest, self._backoff, moved)
        return digest

    def submit_update(self, run: str, round_: int, body: SubmitUpdate) -> Receipt:
        """Hand in a round's adapter."""
        return self._send(Receipt, "POST", paths.UPDATE.format(run=run, round=round_), body)

    def swap_prompts(self, run: str, round_: int, swap: int) -> SwapPrompts:
        """A public step's prompts."""
        return self._get(SwapPrompts, paths.SWAP.format(run=run, round=round_, swap=swap))

    def submit_responses(self, run: str, round_: int, swap: int, data: bytes) -> Receipt:
        """Hand in the responses to a public step's prompts."""
        path = paths.SWAP_RESPONSES.format(run=run, round=round_, swap=swap)
        return self._send(Receipt, "POST", path, data)

    def exchanged(self, run: str, round_: int, swap: int) -> bytes:
        """The responses to train on, waiting until the exchange is closed.

        Raises RoundClosed if this member's responses were not in the exchange.
        """
        path = paths.SWAP_EXCHANGED.format(run=run, round=round_, swap=swap)
        waiting = Waiting()
        while True:
            reply = self._request("GET", path, params={"wait": LONG_POLL_SECONDS})
            if reply.status_code == 200:
                return reply.content
            waiting.log(reply.headers.get(paths.WAITS_HEADER))

    def problem_set(self, run: str, kind: SetKind) -> str:
        """The public set, or the test set for an evaluator, as JSONL text."""
        return self._request("GET", paths.RUN_SET.format(run=run, kind=kind.value)).text

    def submit_evaluation(self, run: str, round_: int, body: Evaluation) -> None:
        """Hand in pass@1 of a round's global adapter."""
        path = paths.EVALUATION.format(run=run, round=round_)
        self._request("POST", path, json=body.model_dump(mode="json"))

    # The ladder: typed body → retries → one request → the error tree

    def _get(self, model: type[M], path: str, params: Mapping[str, Any] | None = None) -> M:
        return _parse(model, self._request("GET", path, params=params))

    def _send(
        self,
        model: type[M],
        method: str,
        path: str,
        body: BaseModel | bytes | None = None,
        key: str | None = None,
    ) -> M:
        if isinstance(body, bytes):
            headers = {"Content-Type": paths.TENSORS_TYPE, "Idempotency-Key": digest_of(body)}
            return _parse(model, self._request(method, path, content=body, headers=headers))
        json = body.model_dump(mode="json") if body is not None else None
        headers = {paths.IDEMPOTENCY_HEADER: key} if key else {}
        return _parse(model, self._request(method, path, json=json, headers=headers))

    def _request(
        self, method: str, path: str, allow: tuple[int, ...] = (), **kwargs: Any
    ) -> httpx.Response:
        call: Callable[[], httpx.Response] = lambda: self._once(method, path, allow, **kwargs)  # noqa: E731
        return retrying(call, self._backoff)

    def _once(
        self, method: str, path: str, allow: tuple[int, ...] = (), **kwargs: Any
    ) -> httpx.Response:
        with self._reaching():
            reply = self._http.request(method, path, **kwargs)
        if reply.status_code >= 400 and reply.status_code not in allow:
            raise _error(reply)
        return reply

    @contextmanager
    def _streamed(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        with self._reaching(), self._http.stream("GET", path, headers=headers) as reply:
            if reply.status_code >= 400:
                reply.read()
                raise _error(reply)
            yield reply

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise Unreachable(
                f"The coordinator at {self.url} cannot be reached ({error}). "
                "Is it running, and is the address right?"
            ) from None


@dataclass(frozen=True)
class _BlobRequests:
    """The requests that `transfers` puts in order; see there."""

    client: CoordinatorClient
    run: str
    path: str | None = None  # of what is downloaded, where it is not the blob's own

    def open(self, wanted: OpenUpload) -> UploadSession:
        path = paths.UPLOADS.format(run=self.run)
        reply = self.client._once("POST", path, json=wanted.model_dump(mode="json"))
        session = _parse(UploadSession, reply)
        if session.upload is None and not session.stored:
            raise ServerFault(f"{path} gave no session for a blob that is not stored.")
        return session

    def send(self, upload: str, first: int, chunk: memoryview) -> None:
        headers = {
            "Content-Range": f"{first}-{first + len(chunk) - 1}",
            "Content-Length": str(len(chunk)),
            "Content-Type": "application/octet-stream",
        }
        self.client._once("PATCH", self._path(upload), content=_blocks(chunk), headers=headers)

    def finish(self, upload: str, digest: str) -> None:
        reply = self.client._once("PUT", self._path(upload), params={"digest": digest})
        _parse(BlobReceipt, reply)

    @contextmanager
    def stream(self, digest: str, first: int) -> Iterator[Body]:
        headers = {"Accept-Encoding": "identity"}
        if first:
            headers |= {"Range": f"bytes={first}-", "If-Range": f'"{digest}"'}
        path = self.path or paths.BLOB.format(run=self.run, digest=digest)
        with self.client._streamed(path, headers) as reply:
            first, total = _extent(reply)
            yield Body(first, total, reply.iter_raw())

    def _path(self, upload: str) -> str:
        return paths.UPLOAD.format(run=self.run, upload=upload)


def _address(url: str) -> httpx.URL:
    """The coordinator's; raises InvalidSettings for what is none."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidSettings(f"{url!r} is no coordinator's address: {error}.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidSettings(f"{url!r} is no coordinator's address, such as https://host:8470.")
    return parsed


def _blocks(chunk: memoryview) -> Iterator[memoryview]:
    return (chunk[at : at + BLOCK_BYTES] for at in range(0, len(chunk), BLOCK_BYTES))


def _extent(reply: httpx.Response) -> tuple[int, int]:
    """Where a reply's body begins in the whole, and the whole's size."""
    if reply.status_code == 206:
        form, header = r"bytes (\d{1,15})-\d{1,15}/(\d{1,15})", "Content-Range"
    else:
        form, header = r"()(\d{1,15})", "Content-Length"
    found = re.fullmatch(form, reply.headers.get(header, ""))
    if found is None:
        raise ServerFault(f"{reply.url.path} answered without a usable {header}.")
    return int(found[1] or 0), int(found[2])


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


def _new_key() -> str:
    """By it a request is known again that is sent again because its answer was lost."""
    return secrets.token_urlsafe(32)


def _parse(model: type[M], reply: httpx.Response) -> M:
    """An answer, without the fields that a later version may have added to it."""
    try:
        return model.model_validate_json(reply.content, extra="ignore")
    except ValidationError as error:
        place = [str(part) for part in error.errors()[0]["loc"]]
        if "settings" in place:
            name = ".".join(place[place.index("settings") + 1 :])
            raise UnknownSetting(
                f"The run's {name} has a value that this version of pubswap does not know. "
                "Upgrade pubswap to the coordinator's version."
            ) from None
        raise ServerFault(f"{reply.url.path} answered something else: {error}") from None


def _error(reply: httpx.Response) -> PubSwapError:
    try:
        return error_for(ProblemDetails.model_validate_json(reply.content), _retry_after(reply))
    except ValidationError:
        return ServerFault(
            f"{reply.request.method} {reply.url} answered {reply.status_code} without a "
            "problem+json body; is there something else at this address?"
        )


def _retry_after(reply: httpx.Response) -> float | None:
    """The header in seconds, of which an hour is believed; its other form, a date, is not read."""
    value = reply.headers.get("Retry-After", "")
    return min(float(value), LONGEST_RETRY_AFTER) if re.fullmatch(r"[0-9]{1,9}", value) else None
