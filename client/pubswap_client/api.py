"""Everything that leaves this machine leaves here: one method for each endpoint, over httpx."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from pubswap_client.retry import FOREVER, Backoff, retrying
from pubswap_protocol import paths
from pubswap_protocol.adapter import digest_of
from pubswap_protocol.errors import (
    DigestMismatch,
    Problem,
    ProtocolMismatch,
    PubSwapError,
    ServerFault,
    Unreachable,
    error_for,
)
from pubswap_protocol.messages import (
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
    Progress,
    Receipt,
    RunList,
    RunView,
    SetKind,
    SetReceipt,
    SubmitUpdate,
    SwapPrompts,
    Task,
    Version,
)

M = TypeVar("M", bound=BaseModel)

LONG_POLL_SECONDS = 25.0


class CoordinatorClient:
    """A coordinator, as seen by the holder of one token. Synchronous, and closed after use."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        backoff: Backoff = FOREVER,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {paths.PROTOCOL_HEADER: paths.PROTOCOL_VERSION}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self.url = url.rstrip("/")
        self._backoff = backoff
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            transport=transport,
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
        return self._send(RunView, "POST", paths.RUNS, body)

    def runs(self) -> list[RunView]:
        """All runs, newest first."""
        return self._get(RunList, paths.RUNS).runs

    def run(self, run: str) -> RunView:
        """One run."""
        return self._get(RunView, paths.RUN.format(run=run))

    def put_tokenizer(self, run: str, data: bytes) -> BlobReceipt:
        """Send the base model's tokenizer.json, with which the coordinator decodes responses."""
        return self._send(BlobReceipt, "PUT", paths.RUN_TOKENIZER.format(run=run), data)

    def put_set(self, run: str, kind: SetKind, data: bytes) -> SetReceipt:
        """Send the public or the test set as JSONL."""
        return self._send(SetReceipt, "PUT", paths.RUN_SET.format(run=run, kind=kind.value), data)

    def move_run(self, run: str, path: str) -> RunView:
        """Open, start, pause, resume or cancel a run; `path` is one of paths.RUN_*."""
        return self._send(RunView, "POST", path.format(run=run))

    def invite(self, run: str, body: CreateInvite) -> Invite:
        """A one-time invite."""
        return self._send(Invite, "POST", paths.RUN_INVITES.format(run=run), body)

    def members(self, run: str) -> MemberList:
        """Who takes part, and where they are."""
        return self._get(MemberList, paths.RUN_MEMBERS.format(run=run))

    def revoke(self, run: str, member: str) -> None:
        """Make a member's token worthless."""
        self._request("DELETE", paths.RUN_MEMBER.format(run=run, member=member))

    def global_adapter(self, run: str, which: str) -> bytes:
        """The `final`, the `best` or a round's global adapter, as safetensors."""
        return self._request("GET", paths.RUN_ADAPTER.format(run=run, which=which)).content

    def events(self, run: str, after: int = 0) -> Events:
        """The run's log after an event's id."""
        return self._get(Events, paths.RUN_EVENTS.format(run=run), {"after": after})

    # A member

    def enroll(self, invite: str) -> Membership:
        """Exchange an invite for a token."""
        return self._send(Membership, "POST", paths.ENROLL, Enroll(invite=invite))

    def rotate(self) -> Membership:
        """A new token in place of this one."""
        return self._send(Membership, "POST", paths.TOKEN)

    def hello(self, run: str, body: Hello) -> None:
        """Say which base model and verifier this member has; raises BaseModelMismatch."""
        self._request("POST", paths.HELLO.format(run=run), json=body.model_dump(mode="json"))

    def task(self, run: str, wait: float = LONG_POLL_SECONDS) -> Task:
        """What to do now; the answer may take up to `wait` seconds."""
        return self._get(Task, paths.TASK.format(run=run), {"wait": wait})

    def heartbeat(self, run: str, body: Progress) -> None:
        """Report progress."""
        path = paths.HEARTBEAT.format(run=run)
        self._request("POST", path, json=body.model_dump(mode="json", exclude_none=True))

    def blob(self, run: str, digest: str) -> bytes:
        """A blob's bytes; raises DigestMismatch if they are not what the digest names."""
        data = self._request("GET", paths.BLOB.format(run=run, digest=digest)).content
        if digest_of(data) != digest:
            raise DigestMismatch(f"The coordinator sent other bytes than {digest}.")
        return data

    def put_blob(self, run: str, data: bytes) -> str:
        """Send a blob unless the coordinator has it; returns its digest."""
        digest = digest_of(data)
        path = paths.BLOB.format(run=run, digest=digest)
        if self._request("HEAD", path, allow=(404,)).status_code == 404:
            self._send(BlobReceipt, "PUT", path, data)
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
        while True:
            reply = self._request("GET", path, params={"wait": LONG_POLL_SECONDS})
            if reply.status_code == 200:
                return reply.content

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
        self, model: type[M], method: str, path: str, body: BaseModel | bytes | None = None
    ) -> M:
        if isinstance(body, bytes):
            headers = {"Content-Type": paths.TENSORS_TYPE, "Idempotency-Key": digest_of(body)}
            return _parse(model, self._request(method, path, content=body, headers=headers))
        json = body.model_dump(mode="json") if body is not None else None
        return _parse(model, self._request(method, path, json=json))

    def _request(
        self, method: str, path: str, allow: tuple[int, ...] = (), **kwargs: Any
    ) -> httpx.Response:
        call: Callable[[], httpx.Response] = lambda: self._once(method, path, allow, **kwargs)  # noqa: E731
        return retrying(call, self._backoff)

    def _once(
        self, method: str, path: str, allow: tuple[int, ...], **kwargs: Any
    ) -> httpx.Response:
        try:
            reply = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise Unreachable(
                f"The coordinator at {self.url} cannot be reached ({error}). "
                "Is it running, and is the address right?"
            ) from None
        if reply.status_code >= 400 and reply.status_code not in allow:
            raise _error(reply)
        return reply


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


def _parse(model: type[M], reply: httpx.Response) -> M:
    try:
        return model.model_validate_json(reply.content)
    except ValidationError as error:
        raise ServerFault(f"{reply.url.path} answered something else: {error}") from None


def _error(reply: httpx.Response) -> PubSwapError:
    try:
        return error_for(Problem.model_validate_json(reply.content))
    except ValidationError:
        return ServerFault(
            f"{reply.request.method} {reply.url} answered {reply.status_code} without a "
            "problem+json body; is there something else at this address?"
        )
