"""Organisations without a model: their adapters and responses are random, everything else is real.

What a member sends in a round is a function of the run's seed, its name, the round, the adapter it
started from, and what the exchanges returned. One wrong byte anywhere changes every later adapter.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_protocol.digests import digest_of
from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import PubSwapError, RoundClosed
from pubswap_protocol.messages import Receipt, SubmitUpdate, TaskKind, UpdateMetrics, WholeRun
from pubswap_protocol.schedule import public_steps_per_round
from pubswap_protocol.tensors.adapter import decode_adapter, encode_adapter
from support.coordinator.coordinator import OPERATOR_TOKEN, Federation, Server

# A killed coordinator is back in less than a second; one that is not back after a minute has
# failed.
PATIENT = Backoff(base_seconds=0.02, cap_seconds=0.3, tries=400)
RETAINED_ROUNDS = 2  # by default
ENVIRONMENT = {
    "PUBSWAP_OPERATOR_TOKEN": OPERATOR_TOKEN,
    "PUBSWAP_TICK_SECONDS": "0.05",
    "PUBSWAP_MAX_WAIT_SECONDS": "2",
    "PUBSWAP_MEMBER_REQUESTS_PER_SECOND": "100000",
}


class PatientServer(Server):
    """A coordinator whose clients retry for about a minute."""

    def client(self, token: str | None = OPERATOR_TOKEN) -> CoordinatorClient:
        """A client that outlives the coordinator's restarts; closed after use."""
        return self.closing.enter_context(CoordinatorClient(self.url, token, PATIENT))


@dataclass(frozen=True)
class Entry:
    """A receipt: its member, what it is for, and how to ask whether it still holds."""

    member: str
    what: str
    holds: Callable[[CoordinatorClient], bool]


@dataclass
class Ledger:
    """All receipts that members have received."""

    _entries: list[Entry] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, entry: Entry) -> None:
        """Record a member's receipt."""
        with self._lock:
            self._entries.append(entry)

    def entries(self) -> list[Entry]:
        """All receipts so far."""
        with self._lock:
            return list(self._entries)

    def broken(self, federation: Federation, backoff: Backoff = PATIENT) -> list[str]:
        """The receipts that no longer hold when their members ask again."""
        clients = {
            name: CoordinatorClient(federation.server.url, token, backoff)
            for name, token in federation.tokens.items()
        }
        try:
            return [
                f"{entry.member}: {entry.what}"
                for entry in self.entries()
                if not _holds(entry, clients[entry.member])
            ]
        finally:
            for client in clients.values():
                client.__exit__()


def _holds(entry: Entry, client: CoordinatorClient) -> bool:
    try:
        return entry.holds(client)
    except PubSwapError:
        return False


class Fleet:
    """The clients of a federation, each in a thread of its own until the run is finished."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.ledger = Ledger()
        self._names = sorted(set(federation.members) - {"judge"})
        self._pool = ThreadPoolExecutor(len(self._names), "member")
        self._futures: list[Future[None]] = []

    def start(self) -> None:
        """Start all members' work."""
        work = self.federation.run.id, self.ledger
        self._futures = [
            self._pool.submit(_Organisation(self.federation, name, *work).live)
            for name in self._names
        ]

    @property
    def done(self) -> bool:
        """Whether all members know that the run is finished; raises a member's error."""
        for future in self._futures:
            if future.done():
                future.result()
        return all(future.done() for future in self._futures)

    def wait(self, seconds: float) -> None:
        """Return when all are done; raises a member's error."""
        for future in self._futures:
            future.result(seconds)
        self._pool.shutdown()


@dataclass
class _Organisation:
    federation: Federation
    name: str
    run: str
    ledger: Ledger

    def live(self) -> None:
        """Carry out the coordinator's tasks until the run is finished."""
        api = self.federation.members[self.name]
        while True:
            task = api.task(self.run, wait=2)
            if task.kind is TaskKind.FINISHED:
                return
            if task.kind is TaskKind.TRAIN:
                assert task.adapter is not None
                self._round(api, task.round, task.adapter)

    def _round(self, api: CoordinatorClient, round_: int, begin: str) -> None:
        run = self.federation.run
        adapter = decode_adapter(run.model.layout, api.blob(run.id, begin))
        seen = [
            self._public_step(api, round_, public_step + 1)
            for public_step in range(public_steps_per_round(run.settings))
        ]
        rng = rng_for(run.settings.seed, self.name, round_, *seen)
        trained = {
            name: (array + 0.1 * rng.standard_normal(array.shape)).astype(array.dtype)
            for name, array in adapter.items()
        }
        data = encode_adapter(run.model.layout, trained)
        digest = api.put_blob(run.id, data)
        if round_ > run.settings.rounds - RETAINED_ROUNDS:  # blobs of earlier rounds are freed
            self._note(f"blob of round {round_}", lambda api: api.blob(run.id, digest) == data)
        metrics = UpdateMetrics(examples=10, steps=run.settings.local_steps)
        update = SubmitUpdate(adapter=digest, metrics=metrics)
        receipt = api.submit_update(run.id, round_, update)
        self._receipt(
            f"update of round {round_}",
            receipt,
            lambda api: api.submit_update(run.id, round_, update),
        )

    def _public_step(self, api: CoordinatorClient, round_: int, public_step: int) -> str:
        """Hand in partly correct responses; returns the digest of what came back."""
        run = self.federation.run
        grpo = run.settings.grpo
        rng = rng_for(run.settings.seed, "right", self.name, round_, public_step)
        right = rng.integers(0, grpo.responses_per_prompt + 1, grpo.prompts_per_step)
        data = self.federation.responses(self.name, round_, public_step, right.tolist())
        receipt = api.submit_responses(run.id, round_, public_step, data)
        self._receipt(
            f"responses of round {round_}, step {public_step}",
            receipt,
            lambda api: api.submit_responses(run.id, round_, public_step, data),
        )
        try:
            return digest_of(api.exchanged(run.id, round_, public_step))
        except RoundClosed:
            return digest_of(data)

    def _receipt(
        self, what: str, receipt: Receipt, again: Callable[[CoordinatorClient], Receipt]
    ) -> None:
        self._note(what, lambda api: again(api) == receipt)

    def _note(self, what: str, holds: Callable[[CoordinatorClient], bool]) -> None:
        self.ledger.add(Entry(self.name, what, holds))


def adapters_of(view: WholeRun) -> list[str | None]:
    """The digests of a run's global adapters, round by round."""
    return [summary.adapter for summary in view.rounds]


def counted_wrong(federation: Federation) -> list[str]:
    """Updates and responses that the run's log does not have exactly once and in time."""
    run = federation.view()
    clients, steps = run.settings.clients, public_steps_per_round(run.settings)
    seen: Counter[tuple[object, ...]] = Counter()
    last_event = 0
    while events := federation.operator.events(run.id, last_event).events:
        last_event = events[-1].id
        for event in events:
            if event.kind in ("update", "responses") and not event.details["late"]:
                details = event.details
                seen[
                    event.kind, details["member"], details["round"], details.get("public_step")
                ] += 1
    wrong = [f"{key}: {number} times" for key, number in seen.items() if number != 1]
    expected = clients * run.settings.rounds * (1 + steps)
    if len(seen) != expected:
        wrong.append(f"{len(seen)} of {expected} submissions are in the log")
    wrong += [
        f"round {summary.round}: mean of {summary.updates}"
        for summary in run.rounds[1:]
        if summary.updates != clients
    ]
    return wrong
