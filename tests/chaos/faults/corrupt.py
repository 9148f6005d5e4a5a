"""Bits flipped in stored blobs: found whenever they are read, never served, and made good.

Half of the flips happen under a running coordinator, which may have read the blob before, and half
while it is down.
"""

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import RoundClosed
from pubswap_protocol.messages import RunState, TaskKind
from pubswap_protocol.tensors.adapter import Adapter, encode_adapter
from pubswap_server.storage.store import file_name, folder_name
from support.client.lives import Lives
from support.coordinator.coordinator import Federation, begun

SETTINGS: dict[str, Any] = {"rounds": 2, "local_steps": 2}
SECONDS = 10.0


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Flip `count` bits, each in a run of its own and in the next kind of blob.

    `lost` counts what was served wrong, not detected, or never made good.
    """
    random, broken = Random(seed), []
    kinds = list(KINDS)
    with Lives(folder) as lives, lives.server() as server:
        lives.begin()
        lives.wait_ready()
        for number, kind in enumerate(itertools.islice(itertools.cycle(kinds), count)):
            federation = begun(server, **SETTINGS)
            down = number // len(kinds) % 2 == 1
            flip = Flip(federation, lives, random, down, seed_for(seed, number))
            KINDS[kind](flip)
            broken += [f"{kind}{' while down' if down else ''}: {what}" for what in flip.broken]
            progress(number + 1)
        broken += [line for line in lives.failures() if "advance failed" not in line]
        lives.kill()
    return {"tried": count, "lost": len(broken), "kinds": len(kinds), "broken": broken[:20]}


@dataclass
class Flip:
    """A run in its first round, and one bit to be flipped in it."""

    federation: Federation
    lives: Lives
    random: Random
    down: bool
    seed: int
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = self.federation.run.id
        self.adapters = {
            (name, round_): self.federation.adapter(seed_for(self.seed, name, round_))
            for name in "ab"
            for round_ in (1, 2)
        }

    def check(self, what: str, holds: bool) -> None:
        """Note what does not hold."""
        if not holds:
            self.broken.append(what)

    def member(self, name: str) -> CoordinatorClient:
        """A member's client, which tries again."""
        return self.federation.members[name]

    def damage(self, digest: str) -> None:
        """Flip a bit of a stored blob; the file's size and its time of change stay."""
        path = self.lives.data_dir / "blobs" / folder_name(digest) / file_name(digest)
        if self.down:
            self.lives.kill()
        before = path.stat()
        bit = self.random.randrange(8 * before.st_size)
        with path.open("r+b", buffering=0) as file:
            file.seek(bit // 8)
            byte = file.read(1)[0]
            file.seek(bit // 8)
            file.write(bytes([byte ^ 1 << bit % 8]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        if self.down:
            self.lives.begin()
            self.lives.wait_ready()

    def hand_in(self, name: str, round_: int) -> str:
        """Send an adapter and its update; returns the receipt's status."""
        return self.federation.submit(name, round_, self.adapters[name, round_])

    def respond(self, name: str, round_: int = 1) -> None:
        """Hand in a public step's responses, some of them right."""
        data = self.federation.responses(name, round_, 1, [1, 3])
        self.member(name).submit_responses(self.run, round_, 1, data)

    def get(self, name: str, digest: str, part: bool) -> httpx.Response:
        """A blob, or its last bytes, over bare HTTP."""
        headers = {"Range": "bytes=-8"} if part else {}
        with self.federation.server.http(self.federation.tokens[name]) as http:
            return http.get(paths.BLOB.format(run=self.run, digest=digest), headers=headers)

    def asked_again(self, name: str, round_: int) -> bool:
        """Whether the member is given the round's work again, soon."""
        return self.soon(lambda: self._has_work(name, round_))

    def _has_work(self, name: str, round_: int) -> bool:
        task = self.member(name).task(self.run, wait=0)
        return (task.kind, task.round) == (TaskKind.TRAIN, round_)

    def noted(self, digest: str) -> bool:
        """Whether the run's log tells of the damage."""
        events = self.federation.operator.events(self.run).events
        return any(e.kind == "blob damaged" and e.details["digest"] == digest for e in events)

    def soon(self, holds: Callable[[], bool]) -> bool:
        """Whether something becomes so within some seconds."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def published(self, round_: int) -> str:
        """A round's adapter, which must be the mean of both members'."""
        view = self.federation.wait_for(round_)
        digest = str(view.rounds[round_].adapter)
        self.check(f"the mean of round {round_}", digest == self.mean(round_))
        return digest

    def mean(self, round_: int) -> str:
        """The digest that a round's adapter must have."""
        both: list[Adapter] = [self.adapters[name, round_] for name in "ab"]
        mean = {n: _mean([adapter[n] for adapter in both]) for n in both[0]}
        return digest_of(encode_adapter(self.federation.run.model.layout, mean))

    def ends(self, round_: int) -> None:
        """The members' ordinary work from a round on brings the run to its end."""
        for number in range(round_, 3):
            for name in "ab":
                if self._has_work(name, number):
                    self.check("an update", self.hand_in(name, number) == "accepted")
            self.published(number)
        self.check("the end", self.federation.view().state is RunState.FINISHED)


def _mean(
    arrays: "list[np.ndarray[Any, np.dtype[np.float32]]]",
) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.mean(np.stack(arrays).astype(np.float64), axis=0).astype(np.float32)


def _waiting_update(flip: Flip) -> None:
    """An update that waits for its round's mean: its client is asked for it again."""
    flip.check("an update", flip.hand_in("a", 1) == "accepted")
    digest = digest_of(encode_adapter(flip.federation.run.model.layout, flip.adapters["a", 1]))
    flip.damage(digest)
    flip.check("the other update", flip.hand_in("b", 1) == "accepted")
    flip.check("asked again", flip.asked_again("a", 1))
    flip.check("noted", flip.noted(digest))
    flip.check("nothing is published", flip.federation.view().rounds[1].adapter is None)
    flip.ends(1)


def _own_blob(flip: Flip) -> None:
    """A blob that its sender reads: refused, then unknown, and taken again when it is sent."""
    data = encode_adapter(flip.federation.run.model.layout, flip.adapters["a", 1])
    digest = flip.member("a").put_blob(flip.run, data)
    flip.damage(digest)
    codes = {flip.get("a", digest, part=flip.random.random() < 0.5).status_code}
    flip.check(f"503, not {codes}", codes == {503})
    flip.check("unknown", flip.soon(lambda: flip.get("a", digest, part=False).status_code == 404))
    flip.check("noted", flip.noted(digest))
    flip.ends(1)


def _responses(flip: Flip) -> None:
    """Responses of a closed exchange: it goes on without them, and their sender with its own."""
    for name in "ab":
        flip.respond(name)
    data = flip.federation.responses("a", 1, 1, [1, 3])
    flip.soon(lambda: bool(flip.federation.view().rounds[1].public_steps))
    flip.damage(digest_of(data))
    own = flip.federation.responses("b", 1, 1, [1, 3])
    flip.check("only its own", flip.member("b").exchanged(flip.run, 1, 1) == own)
    flip.check("noted", flip.noted(digest_of(data)))
    try:
        flip.member("a").exchanged(flip.run, 1, 1)
        flip.broken.append("the sender got an exchange without its responses")
    except RoundClosed:
        pass
    flip.ends(1)


def _global(flip: Flip) -> None:
    """A published adapter: not served, made again from its round's updates, and served then."""
    for name in "ab":
        flip.hand_in(name, 1)
    digest = flip.published(1)
    flip.damage(digest)
    reply = flip.get("a", digest, part=flip.random.random() < 0.5)
    flip.check(f"503, not {reply.status_code}", reply.status_code == 503)

    def served() -> bool:
        reply = flip.get("a", digest, part=False)
        if reply.status_code == 200:
            flip.check("the right bytes", digest_of(reply.content) == digest)
        return reply.status_code == 200

    flip.check("noted", flip.soon(lambda: flip.noted(digest)))
    if flip.soon(served):
        flip.ends(2)
    else:
        flip.broken.append("never made again")


KINDS: dict[str, Callable[[Flip], None]] = {
    "waiting update": _waiting_update,
    "own blob": _own_blob,
    "responses": _responses,
    "global adapter": _global,
}
