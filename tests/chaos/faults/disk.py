"""A disk that is really full, at each place where the coordinator needs room.

It must refuse in words (507, or 503 for the database), keep nothing half-done, go on reading, and
finish the same run by itself when there is room again.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol import paths
from pubswap_protocol.digests import digest_of
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import NoSpace, PubSwapError, Unavailable, UnknownBlob
from pubswap_protocol.messages import CreateInvite, RunState, SubmitUpdate, TaskKind, UpdateMetrics
from pubswap_protocol.tensors.adapter import encode_adapter
from support.chaos.small_disk import SmallDisk, missing, small_disk
from support.client.lives import Lives
from support.coordinator.coordinator import Federation, Server, begun
from support.eventually import until

__all__ = ["missing", "run"]

DISK_BYTES = 64 << 20
SPARE_BYTES = 4 << 20
CHUNK_BYTES = 256 << 10
# 1.9 MB, in eight chunks.
EVERYWHERE = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj")
SETTINGS: dict[str, Any] = {
    "rounds": 1,
    "lora": {"rank": 64, "alpha": 4, "target_modules": EVERYWHERE},
}
ENVIRONMENT = {"PUBSWAP_SPARE_BYTES": str(SPARE_BYTES)}
END_SECONDS = 30.0


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """Fill the disk `count` times, each in a run of its own and at the next of the places.

    `lost` counts the promises that were broken.
    """
    broken: list[str] = []
    random = Random(seed)
    with (
        small_disk(folder / "disk", DISK_BYTES) as disk,
        Lives(folder, ENVIRONMENT, disk.folder / "data") as lives,
    ):
        lives.begin()
        lives.wait_ready()
        places = itertools.islice(itertools.cycle(PLACES.items()), count)
        for number, (place, fill) in enumerate(places):
            server = Server(lives.url, None, lives.data_dir)
            with server.closing:
                one = Filling(begun(server, **SETTINGS), disk, random, seed_for(seed, number))
                fill(one)
                broken += [f"{place}: {what}" for what in one.broken]
            _forget_blobs(lives.data_dir)
            progress(number + 1)
        broken += [line for line in lives.failures() if "advance failed" not in line]
        lives.kill()
    return {
        "tried": count,
        "lost": len(broken),
        "places": min(count, len(PLACES)),
        "broken": broken[:20],
    }


@dataclass
class Filling:
    """A run in its first round, whose member `a` meets a full disk; what was broken is noted."""

    federation: Federation
    disk: SmallDisk
    random: Random
    seed: int
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = self.federation.run.model.layout
        self.run = self.federation.run.id
        self.api: CoordinatorClient = self.federation.members["a"]
        server = self.federation.server
        self.http: httpx.Client = server.closing.enter_context(
            server.http(self.federation.tokens["a"])
        )
        self.data = encode_adapter(layout, self.federation.adapter(self.seed))
        self.digest = digest_of(self.data)

    def check(self, what: str, holds: bool) -> None:
        """Note what does not hold."""
        if not holds:
            self.broken.append(what)

    def refused(self, what: str, call: Callable[[], object]) -> None:
        """The call must be refused as one that is worth a retry."""
        try:
            call()
        except (NoSpace, Unavailable):
            return
        except PubSwapError as error:
            self.broken.append(f"{what} was refused as {error.code}")
        else:
            self.broken.append(f"{what} was not refused")

    def open(self) -> dict[str, Any]:
        """Announce the adapter over bare HTTP; returns the session."""
        body = {"digest": self.digest, "size": len(self.data)}
        found: dict[str, Any] = self.http.post(paths.UPLOADS.format(run=self.run), json=body).json()
        return found

    def send(self, upload: str, first: int) -> httpx.Response:
        """Send one chunk over bare HTTP."""
        chunk = self.data[first : first + CHUNK_BYTES]
        headers = {"Content-Range": f"{first}-{first + len(chunk) - 1}"}
        return self.http.patch(self._path(upload), content=chunk, headers=headers)

    def finish(self, upload: str) -> httpx.Response:
        """Ask for the receipt over bare HTTP."""
        return self.http.put(self._path(upload), params={"digest": self.digest})

    def offset(self, upload: str) -> int:
        """How far the upload has come."""
        return int(self.http.get(self._path(upload)).json()["offset"])

    def update(self) -> object:
        """Hand the adapter in."""
        body = SubmitUpdate(adapter=self.digest, metrics=UpdateMetrics(examples=1, steps=2))
        return self.api.submit_update(self.run, 1, body)

    def reads_work(self) -> None:
        """While the disk is full, everything that is there can be had."""
        self.check("tasks", self.api.task(self.run, wait=0).kind is TaskKind.TRAIN)
        view = self.federation.view()
        self.check("the run", view.state in (RunState.TRAINING, RunState.AGGREGATING))
        begin = str(view.rounds[0].adapter)
        try:
            self.check("a download", digest_of(self.api.blob(self.run, begin)) == begin)
        except PubSwapError as error:
            self.broken.append(f"a download was refused as {error.code}")

    def goes_on(self) -> None:
        """With room again, both members' ordinary requests bring the run to its end."""
        self.disk.make_room()
        self.api.put_blob(self.run, self.data)
        self.update()
        self.federation.submit("b", 1, self.federation.adapter(self.seed + 1))
        self.ends()

    def ends(self) -> None:
        """The run is finished soon, with both updates in its mean."""
        deadline = time.monotonic() + END_SECONDS
        while (view := self.federation.view()).state is not RunState.FINISHED:
            if time.monotonic() > deadline:
                self.broken.append(f"the run stays {view.state}")
                return
            time.sleep(0.02)
        self.check("the mean is of two", view.rounds[1].updates == 2)
        self.federation.operator.global_adapter(self.run, "final")

    def not_stored(self) -> None:
        """There is no blob yet."""
        try:
            self.api.blob(self.run, self.digest)
        except UnknownBlob:
            return
        self.broken.append("there is a blob without a receipt")

    def _path(self, upload: str) -> str:
        return paths.UPLOAD.format(run=self.run, upload=upload)


def _announced(one: Filling) -> None:
    """There is less room than the upload needs: 507 before a byte of it is taken."""
    one.disk.fill(leave=SPARE_BYTES + one.random.randrange(len(one.data)))
    before = one.disk.free()
    reply = one.open()
    one.check("507", (reply.get("status"), reply.get("code")) == (507, "no_space"))
    one.check("no byte is taken", before - one.disk.free() < CHUNK_BYTES)
    one.reads_work()
    one.goes_on()


def _chunks(one: Filling) -> None:
    """The room that was promised is taken by somebody else, between two chunks or inside one."""
    upload = str(one.open()["upload"])
    sent = CHUNK_BYTES * one.random.randrange(1, 6)
    for first in range(0, sent, CHUNK_BYTES):
        one.check("a chunk", one.send(upload, first).status_code == 202)
    one.disk.fill(leave=one.random.choice((0, CHUNK_BYTES // 2)))
    reply = one.send(upload, sent)
    one.check(f"507, not {reply.status_code}", reply.status_code == 507)
    one.check("what came is kept", sent <= one.offset(upload) < sent + CHUNK_BYTES)
    one.reads_work()
    one.disk.make_room()
    one.check("it is the same upload", one.open()["upload"] == upload)
    one.goes_on()


def _finish(one: Filling) -> None:
    """No room for the row that names the blob."""
    upload = str(one.open()["upload"])
    for first in range(0, len(one.data), CHUNK_BYTES):
        one.check("a chunk", one.send(upload, first).status_code == 202)
    one.disk.fill()
    reply = one.finish(upload)
    if reply.status_code != 201:  # the database's log may have had room of its own
        one.check(f"507 or 503, not {reply.status_code}", reply.status_code in (507, 503))
        one.not_stored()
    one.reads_work()
    one.goes_on()


def _commit(one: Filling) -> None:
    """No room for the update's row, nor for anything else in the database."""
    one.api.put_blob(one.run, one.data)
    one.disk.fill()
    _exhaust(one)
    try:
        one.update()
    except (NoSpace, Unavailable):
        one.reads_work()
    # A checkpoint meanwhile may have emptied the log: then there is a receipt, which must hold.
    one.goes_on()


def _exhaust(one: Filling) -> None:
    """Have the database's log fill what room it has left in its file."""
    for number in range(1000):  # it begins again at its start while checkpoints succeed
        try:
            name = f"nobody-{number}"
            one.federation.operator.invite(one.run, CreateInvite(name=name))
        except (NoSpace, Unavailable):
            return
    one.broken.append("the database never was full")


def _responses(one: Filling) -> None:
    """No room for the responses of a public step."""
    data = one.federation.responses("a", 1, 1, [1, 2])
    one.disk.fill()
    one.refused("responses", lambda: one.api.submit_responses(one.run, 1, 1, data))
    one.reads_work()
    one.disk.make_room()
    one.check("status", one.api.submit_responses(one.run, 1, 1, data).status == "accepted")
    one.goes_on()


def _mean(one: Filling) -> None:
    """No room for the mean: the round stays closed, and is averaged when there is some."""
    one.federation.submit("a", 1, one.federation.adapter(one.seed))
    adapter = one.federation.adapter(one.seed + 1)
    data = encode_adapter(one.federation.run.model.layout, adapter)
    one.federation.members["b"].put_blob(one.run, data)
    one.disk.fill(leave=len(data) // 2)
    one.check("the last update", one.federation.submit("b", 1, adapter) == "accepted")
    until(lambda: one.federation.view().state is not RunState.TRAINING, END_SECONDS)
    time.sleep(0.3)
    view = one.federation.view()
    one.check(f"aggregating, not {view.state}", view.state is RunState.AGGREGATING)
    one.check("nothing is published", view.rounds[1].adapter is None)
    one.disk.make_room()
    one.ends()


PLACES: dict[str, Callable[[Filling], None]] = {
    "announced": _announced,
    "chunks": _chunks,
    "finish": _finish,
    "commit": _commit,
    "responses": _responses,
    "mean": _mean,
}


def _forget_blobs(data_dir: Path) -> None:
    """Room for the next run: this one is finished and nobody reads it any more."""
    for path in (data_dir / "blobs").glob("*/*"):
        path.unlink()
