"""The wall clock jumps by a day in the middle of a round: same outcome, at the same time.

Over a restart a jump ahead cannot be told from a day without the coordinator, so that a round may
then close at once; it must close with the same updates, and a jump back must not make it wait.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.draws import seed_for
from pubswap_protocol.messages import CreateInvite, RunState
from pubswap_protocol.tensors.adapter import encode_adapter
from support.chaos.false_time import FalseTime
from support.client.lives import Lives
from support.coordinator.coordinator import Federation, begun
from support.coordinator.fleet import adapters_of

DAY = 24 * 3600
DEADLINE_SECONDS = 2.0
LATEST_SECONDS = 10.0  # after the deadline: a machine may be busy, but no day passes
SETTINGS: dict[str, Any] = {
    "clients": 3,
    "rounds": 2,
    "method": "fedavg",
    "seed": 11,
    "aggregation": {"quorum": 2, "deadline_seconds": DEADLINE_SECONDS},
}
JUMPS = {
    (way, when): (seconds, when == "over a restart")
    for when in ("while it runs", "over a restart")
    for way, seconds in {"ahead": DAY, "back": -DAY}.items()
}


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Let the clock jump `count` times, each in a run of its own; what it must not change is lost.

    `off_seconds` is the longest time from a deadline to its closing, without restarts.
    """
    folder.mkdir(exist_ok=True)
    clock = FalseTime(folder / "clock")
    broken: list[str] = []
    off: list[float] = []
    with Lives(folder, env=clock.env) as lives:
        expected = None
        cases = itertools.islice(itertools.cycle(JUMPS.items()), count)
        for number, (name, (seconds, restarted)) in enumerate([(None, (0, False)), *cases]):
            clock.jump(0)
            case = _Case(lives, clock, seconds, restarted, seed)
            adapters = case.run()
            expected = expected or adapters
            case.check("the adapters", adapters == expected)
            broken += [f"{' '.join(name or ('no jump',))}: {what}" for what in case.broken]
            off += [] if restarted else [case.off]
            progress(number)
        broken += lives.failures()
    return {"tried": count, "lost": len(broken), "off_seconds": max(off), "broken": broken[:20]}


@dataclass
class _Case:
    lives: Lives
    clock: FalseTime
    seconds: int
    restarted: bool
    seed: int
    broken: list[str] = field(default_factory=list)
    off: float = 0.0

    def check(self, what: str, holds: bool) -> None:
        if not holds:
            self.broken.append(what)

    def run(self) -> list[str | None]:
        """A run with a jump in its first round; returns its adapters."""
        self.lives.begin()
        self.lives.wait_ready()
        with self.lives.server() as server:
            federation = begun(server, **SETTINGS)
            invite = federation.operator.invite(federation.run.id, CreateInvite(name="guest"))
            before = self._open(federation, "c")
            before_any = time.monotonic()
            self._submit(federation, "a", 1)
            first = time.monotonic()
            self._submit(federation, "b", 1)
            due = max(time.monotonic(), first + DEADLINE_SECONDS)
            self._jump()
            after = self._open(federation, "c")
            self._close(federation, before_any, due)
            self.check("c comes late", self._submit(federation, "c", 1) == "late, unused")
            # Two are the quorum, without which no deadline closes: a slow machine changes nothing.
            for name in "bc":
                self.check(f"{name} in time", self._submit(federation, name, 2) == "accepted")
            view = federation.wait_for(2)
            self.check("the end", view.state is RunState.FINISHED)
            if not self.restarted:
                self.check("the upload", before == after)
                federation.operator.enroll(invite.invite)
        self.lives.kill()
        return adapters_of(view)

    def _jump(self) -> None:
        if self.restarted:
            self.lives.kill()
        self.clock.jump(self.seconds)
        if self.restarted:
            self.lives.begin()
            self.lives.wait_ready()

    def _close(self, federation: Federation, before_any: float, due: float) -> None:
        """Wait for the first round's end: its deadline counts from the first arrival.

        All arrived after `before_any`; at `due` there was a quorum and the deadline had passed.
        """
        while federation.view().round == 1:
            if time.monotonic() - due > 2 * LATEST_SECONDS:
                self.broken.append("the round does not close")
                self._submit(federation, "c", 1)
                federation.wait_for(1)
                return
            time.sleep(0.02)
        closed = time.monotonic()
        self.off = max(0.0, closed - due)
        if not self.restarted:
            took = closed - before_any
            self.check(f"closed after {took:.1f} s", took >= DEADLINE_SECONDS)
            self.check(f"closed {self.off:.1f} s late", self.off <= LATEST_SECONDS)

    def _submit(self, federation: Federation, name: str, round_: int) -> str:
        adapter = federation.adapter(seed_for(self.seed, name, round_))
        return federation.submit(name, round_, adapter)

    def _open(self, federation: Federation, name: str) -> str:
        """A member's upload of round 1, on a connection of its own."""
        layout = federation.run.model.layout
        adapter = federation.adapter(seed_for(self.seed, name, 1))
        body = {"digest": digest_of(encode_adapter(layout, adapter)), "size": layout.file_bytes}
        with federation.server.http(federation.tokens[name]) as http:
            upload = http.post(paths.UPLOADS.format(run=federation.run.id), json=body).json()[
                "upload"
            ]
        assert isinstance(upload, str)
        return upload
