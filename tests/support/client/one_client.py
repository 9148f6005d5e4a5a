"""One client without a network: a coordinator in memory, and processes that die by an exception.

This is cheaper than SIGKILL and reaches every point, but unlike SIGKILL it runs `finally` blocks.
"""

import dataclasses
import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pubswap_client.daemon.context import MemberContext
from pubswap_client.daemon.held_out import HeldOut
from pubswap_client.daemon.own_settings import Deadline, RoundLimits
from pubswap_client.daemon.reporters import LogLines, Reporter
from pubswap_client.daemon.round import LocalRound
from pubswap_client.state.journal import Journal, JournalOwner, RoundKey
from pubswap_client.state.privacy import PrivacyBudget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import IdempotencyMismatch, RoundClosed
from pubswap_protocol.messages import (
    Progress,
    PublicPrompt,
    PublicStepPrompts,
    Receipt,
    ReceiptStatus,
    RunView,
    SubmitUpdate,
)
from pubswap_protocol.problems import Problem
from pubswap_protocol.tensors.adapter import AdapterFile, encode_adapter, initial_adapter
from pubswap_protocol.tensors.responses import (
    Response,
    ResponseRules,
    decode_responses,
    encode_responses,
)
from pubswap_protocol.tensors.update_encoding import view_update

ROUNDS, STEPS = 2, 4
PUBLIC = (0, 1, 2)


class Killed(BaseException):
    """The process is dead; no code handles this."""


class ClientPoints:
    """Counts the points a life passes, and ends it at one of them."""

    def __init__(self) -> None:
        self.remaining: float = float("inf")
        self.passed = 0

    def hit(self) -> None:
        """Pass a point, or raise Killed there."""
        self.passed += 1
        self.remaining -= 1
        if self.remaining <= 0:
            raise Killed

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call with a point before it and one after it."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.hit()
            result = call(*args, **kwargs)
            self.hit()
            return result

        return wrapped


class FakeCoordinator:
    """Answers a single client as the coordinator does, with one peer in each exchange."""

    def __init__(self, run: RunView, problems: Sequence[Problem], peer: list[list[Response]]):
        self.run = run
        self.problems = problems
        self.peer = peer
        self.blobs: dict[str, bytes] = {}
        self.submitted: dict[tuple[int, int], bytes] = {}
        self.updates: dict[int, SubmitUpdate] = {}
        self.mismatches = 0
        self.sent = 0  # how often responses came, repeats included
        self.late = False  # whether exchanges are closed when our responses come
        self.closed = False  # whether exchanges close while we wait
        self.sampling_seed: int | None = None
        self.rollbacks = 0  # as its tasks report

    def blob(self, run: str, digest: str, moved: Any = None, max_bytes: int = 0) -> bytes:
        assert len(self.blobs[digest]) <= max_bytes
        return self.blobs[digest]

    def put_blob(self, run: str, data: bytes, moved: Any = None) -> str:
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def public_step_prompts(
        self, run: str, round_: int, public_step: int, rollbacks: int = 0
    ) -> PublicStepPrompts:
        prompts = [PublicPrompt(index=i, problem=self.problems[i]) for i in PUBLIC]
        seed = self.sampling_seed
        return PublicStepPrompts(
            round=round_, public_step=public_step, prompts=prompts, sampling_seed=seed
        )

    def submit_responses(
        self, run: str, round_: int, public_step: int, data: bytes, rollbacks: int = 0
    ) -> Receipt:
        self.sent += 1
        if self.submitted.setdefault((round_, public_step), data) != data:
            self.mismatches += 1
            raise IdempotencyMismatch
        status = ReceiptStatus.LATE if self.late else ReceiptStatus.ACCEPTED
        return Receipt(status=status, digest=digest_of(data))

    def exchanged(
        self, run: str, round_: int, public_step: int, on_wait: Any, *, seeds: bool, max_bytes: int
    ) -> bytes:
        answer = self._exchanged(round_, public_step, seeds)
        assert len(answer) <= max_bytes < 1 << 20
        return answer

    def _exchanged(self, round_: int, public_step: int, seeds: bool) -> bytes:
        assert seeds is (self.sampling_seed is not None)
        if self.closed:
            raise RoundClosed
        rules = ResponseRules.of(self.run.model, self.run.settings, PUBLIC)
        submitted = decode_responses(self.submitted[round_, public_step], rules)
        mixed = [
            group[:2] + peer_group[:2]
            for group, peer_group in zip(submitted, self.peer, strict=True)
        ]
        return encode_responses(PUBLIC, mixed)

    def submit_update(
        self,
        run: str,
        round_: int,
        body: SubmitUpdate,
        start: str | None = None,
        rollbacks: int = 0,
    ) -> Receipt:
        assert body.adapter in self.blobs
        if self.updates.setdefault(round_, body) != body:
            self.mismatches += 1
            raise IdempotencyMismatch
        return Receipt(status=ReceiptStatus.ACCEPTED, digest=body.adapter)

    def heartbeat(self, run: str, body: Progress) -> None:
        pass

    def paused(self, run: str, wait: float = 0.0) -> bool:
        return False

    def publish(self, number: int, start: str) -> str:
        """The digest of the global adapter after a round of one client that began at `start`."""
        layout, precision = self.run.model.layout, self.run.settings.wire.precision
        with tempfile.TemporaryDirectory() as folder:
            update, base = Path(folder, "update"), Path(folder, "base")
            update.write_bytes(self.blobs[self.updates[number].adapter])
            base.write_bytes(self.blobs[start])
            view = view_update(update, layout, precision, AdapterFile(base, layout))
            data = encode_adapter(layout, {name: view.tensor(name) for name in layout.tensors})
        self.blobs[digest_of(data)] = data
        return digest_of(data)


CALLS = (
    *("blob", "public_step_prompts", "submit_responses", "exchanged"),
    *("put_blob", "submit_update", "paused"),
)


@dataclasses.dataclass
class World:
    """All that outlives a process, the coordinator and the state folder, and how to start one."""

    coordinator: FakeCoordinator
    state: Path
    trainer: Callable[[PrivacyBudget | None], LocalTrainer]
    points: ClientPoints
    trained_on: dict[tuple[int, int], set[str]]
    privacy: Callable[[], PrivacyBudget | None] = lambda: None
    held_out: Sequence[Problem] = ()
    limits: RoundLimits = dataclasses.field(default_factory=RoundLimits)
    end: float = math.inf  # of each process, a time of time.monotonic()
    public: Sequence[Problem] | None = None  # as it was downloaded, if not the coordinator's

    def live(self, reporter: Reporter | None = None) -> None:
        """Live as one process: a new trainer and journal, then every round not handed in yet."""
        run, privacy = self.coordinator.run, self.privacy()
        trainer = self.trainer(privacy)
        journal = Journal(self.state, JournalOwner.of(run, "a"))
        deadline = Deadline(self.end)
        self._watch(trainer)
        layout = run.model.layout
        start = self.coordinator.put_blob(
            run.id, encode_adapter(layout, initial_adapter(layout, run.settings.seed))
        )
        for number in range(1, ROUNDS + 1):
            if number not in self.coordinator.updates:
                api: Any = self.coordinator
                log = reporter or LogLines()
                held_out = (
                    HeldOut(self.state, run.id, self.held_out, "1") if self.held_out else None
                )
                context = MemberContext(
                    api=api,
                    run=run,
                    trainer=trainer,
                    journal=journal,
                    reporter=log,
                    privacy=privacy,
                    held_out=held_out,
                    limits=self.limits,
                    deadline=deadline,
                    public=self.coordinator.problems if self.public is None else self.public,
                )
                local_round = LocalRound(context, RoundKey(number, start, api.rollbacks))
                local_round.train()
                local_round.hand_in()
            start = self.coordinator.publish(number, start)

    def _watch(self, trainer: LocalTrainer) -> None:
        step_on = trainer.public_step

        def public_step(step: int, problems: Any, groups: Any) -> Any:
            seen = self.trained_on.setdefault((trainer.round, step), set())
            seen.add(digest_of(encode_responses(PUBLIC, groups)))
            self.points.hit()
            return step_on(step, problems, groups)

        trainer.public_step = public_step  # type: ignore[method-assign]
        trainer.engine.generate = self.points.around(trainer.engine.generate)  # type: ignore[method-assign]

    def adapters(self) -> list[bytes]:
        """The adapters handed in, round by round."""
        updates = [self.coordinator.updates[number] for number in range(1, ROUNDS + 1)]
        return [self.coordinator.blobs[update.adapter] for update in updates]


def kill_again_and_again(
    world: World, reporter: Callable[[], Reporter | None] = lambda: None
) -> int:
    """Kill the first life at its first point, the second at its third, ...; returns the deaths."""
    for deaths in itertools.count():
        world.points.remaining = 1 + 2 * deaths
        try:
            world.live(reporter())
        except Killed:
            continue
        world.points.remaining = float("inf")
        return deaths
    raise AssertionError
