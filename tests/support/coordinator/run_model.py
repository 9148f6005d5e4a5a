"""A model of a run in one page: the response that each request must get.

Written from the diagram of the state machine and the API's documentation, not from the
coordinator's code.
"""

from dataclasses import dataclass, field

ACCEPTED, LATE = "accepted", "late, unused"
HEARD_SECONDS = 60.0  # a running member is heard from more often, whatever the deadline
REVOKED, UNKNOWN_BLOB, CLOSED = (401, "unauthenticated"), (404, "unknown_blob"), "round_closed"
OTHER_BYTES, NOT_FOUND, WRONG_STATE, PAUSED = (
    (409, "idempotency_mismatch"),
    (404, "not_found"),
    (409, "wrong_state"),
    (409, "run_paused"),
)

Answer = tuple[int, str]  # the status, and the receipt's status or the error's code


@dataclass
class Exchange:
    """A public step: when it began, whether it is closed, and the variants of members in time."""

    first_at: float
    closed: bool = False
    members: dict[str, int] = field(default_factory=dict)


@dataclass
class RunModel:
    """A run in round 1 of `rounds`, with clients and deadlines (seconds), but without a quorum."""

    clients: frozenset[str]
    rounds: int
    round_deadline: float
    exchange_deadline: float
    state: str = "training"
    paused: bool = False
    round: int = 1
    now: float = 0.0
    active: set[str] = field(default_factory=set)
    started_at: float = 0.0  # of the coordinator's present life
    # When each member was last heard from: known to this life, and on disk.
    heard: dict[str, float] = field(default_factory=dict)
    heard_on_disk: dict[str, float] = field(default_factory=dict)
    uploads: set[tuple[str, int]] = field(default_factory=set)  # begun
    # In the round under way.
    blobs: set[tuple[str, int]] = field(default_factory=set)
    # By member and round: the variant, its status, and when it came.
    updates: dict[tuple[str, int], tuple[int, str, float]] = field(default_factory=dict)
    responses: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    # By round: the members and variants whose mean it ended with, in order.
    means: dict[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.active = set(self.clients)

    @property
    def under_way(self) -> bool:
        """Whether the round accepts submissions."""
        return self.state in ("training", "exchanging")

    def asks(self, member: str) -> bool:
        """Whether the member may ask; if so, it is heard from."""
        if member in self.active:
            self.heard[member] = self.now
        return member in self.active

    def crash(self) -> None:
        """Forget what is not on disk, and begin another life."""
        self.heard.clear()
        self.started_at = self.now

    def upload(self, member: str, variant: int, half: bool = False) -> Answer:
        """Make a whole resumable upload, or the first half of one."""
        if not self.asks(member):
            return REVOKED
        if (member, variant) in self.blobs:
            return 201, "stored"
        if self.state == "finished":
            return WRONG_STATE
        if self.paused and (member, variant) not in self.uploads:
            return PAUSED
        if half:
            self.uploads.add((member, variant))
            return 202, "begun"
        self.uploads.discard((member, variant))
        self.blobs.add((member, variant))
        return 201, "stored"

    def update(self, member: str, round_: int, variant: int) -> Answer:
        """Hand in an adapter."""
        if not self.asks(member):
            return REVOKED
        if (member, round_) in self.updates:
            previous, status, _ = self.updates[member, round_]
            return (200, status) if previous == variant else OTHER_BYTES
        if not 1 <= round_ <= self.round:
            return 409, CLOSED
        status = ACCEPTED if self.under_way and round_ == self.round else LATE
        if self.paused and self.state != "finished":
            return PAUSED
        if status == ACCEPTED and (member, variant) not in self.blobs:
            return UNKNOWN_BLOB
        self.updates[member, round_] = variant, status, self.now
        return 200, status

    def respond(self, member: str, round_: int, variant: int) -> Answer:
        """Hand in the responses of a public step; each round has one."""
        if not self.asks(member):
            return REVOKED
        if round_ < 1:
            return NOT_FOUND
        if round_ > self.round:
            return 409, CLOSED
        if (member, round_) in self.responses:
            previous, status = self.responses[member, round_]
            return (200, status) if previous == variant else OTHER_BYTES
        if self.paused and self.state != "finished":
            return PAUSED
        open_ = self.under_way and round_ == self.round
        if open_ and round_ not in self.exchanges:
            self.exchanges[round_] = Exchange(self.now)
            self.state = "exchanging"
        in_time = open_ and not self.exchanges[round_].closed
        status = ACCEPTED if in_time else LATE
        if in_time:
            self.exchanges[round_].members[member] = variant
        self.responses[member, round_] = variant, status
        return 200, status

    def exchanged(self, member: str, round_: int) -> Answer:
        """Ask for the groups to train on, without waiting."""
        if not self.asks(member):
            return REVOKED
        exchange = self.exchanges.get(round_)
        inside = exchange is not None and member in exchange.members
        over = exchange is None or exchange.closed or round_ != self.round or not self.under_way
        if inside and not over:
            return 204, "open"
        if round_ < 1:
            return NOT_FOUND
        if round_ > self.round:
            return 409, CLOSED
        if exchange is not None and exchange.closed and inside:
            return 200, "groups"
        return 409, CLOSED

    def task(self, member: str) -> tuple[int, str, int]:
        """Ask for a task: the status, the kind, and the round."""
        if not self.asks(member):
            return (*REVOKED, 0)
        if self.state == "finished":
            return 200, "finished", self.round
        if self.under_way and not self.paused and (member, self.round) not in self.updates:
            return 200, "train", self.round
        return 200, "wait", self.round

    def pause(self, paused: bool) -> Answer:
        """Pause or resume the run as its operator."""
        if self.state == "finished":
            return WRONG_STATE
        if self.paused and not paused:  # deadlines count anew
            for exchange in self.exchanges.values():
                exchange.first_at = self.now
            for (member, round_), (variant, status, _) in self.updates.items():
                self.updates[member, round_] = variant, status, self.now
        self.paused = paused
        return 200, self.state

    def conduct(self) -> None:
        """Close whatever is due unless the run is paused, and publish a closed round's mean."""
        self.heard_on_disk |= self.heard
        if not self.under_way or self.paused:
            return
        exchange = self.exchanges.get(self.round)
        if exchange is not None:
            # A member that has handed in its update sends no more responses.
            done = {member for member, round_ in self.updates if round_ == self.round}
            arrived = exchange.members.keys() | done
            exchange.closed |= self._due(arrived, exchange.first_at, self.exchange_deadline)
            if exchange.closed:
                self.state = "training"
        accepted = {
            member: (variant, at)
            for (member, round_), (variant, status, at) in self.updates.items()
            if round_ == self.round and status == ACCEPTED
        }
        first = min((at for _, at in accepted.values()), default=self.now)
        if self._due(set(accepted), first, self.round_deadline):
            self.means[self.round] = tuple(
                (member, accepted[member][0]) for member in sorted(accepted)
            )
            self.blobs.clear()
            self.state = "finished" if self.round == self.rounds else "training"
            self.round = min(self.round + 1, self.rounds)

    def _due(self, arrived: set[str], first_at: float, deadline: float) -> bool:
        """All are in; or, after the deadline, half of those who came or were heard from."""
        if not arrived:
            return False
        here = arrived | {member for member in self.active if self._is_heard(member, deadline)}
        enough, passed = 2 * len(arrived) >= len(here), self.now - first_at >= deadline
        return enough and (self.active <= arrived or passed)

    def _is_heard(self, member: str, deadline: float) -> bool:
        if self.now - self.started_at < HEARD_SECONDS:
            return True  # this life has heard from nobody yet
        since = self.now - self.heard_on_disk.get(member, -float("inf"))
        return since < max(deadline, HEARD_SECONDS)
