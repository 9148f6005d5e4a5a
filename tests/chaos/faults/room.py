"""A member that stores all the adapters it can and uses none, beside honest ones on a small disk.

The coordinator is killed again and again meanwhile, mostly around the commits that free what is not
kept. Honest rounds go on, the disk does not fill, and what is kept is whole at the end.
"""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import ONCE
from pubswap_protocol.command_line.progress_bar import progress_bar
from pubswap_protocol.draws import seed_for
from pubswap_protocol.errors import PubSwapError
from pubswap_protocol.messages import RunState, TaskKind
from pubswap_protocol.tensors.adapter import encode_adapter
from pubswap_server.admin.verify import verify
from pubswap_server.runs.uploads import ADAPTERS_A_ROUND
from pubswap_server.settings import ServerSettings
from support.chaos.server_points import constants
from support.chaos.small_disk import missing, small_disk
from support.client.lives import Lives
from support.coordinator.coordinator import Federation, begun

__all__ = ["missing", "run"]

DISK_BYTES = 32 << 20
EVERYWHERE = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj")
HONEST, HOSTILE = ("a", "b"), "c"
SETTINGS: dict[str, Any] = {
    "method": "fedavg",
    "clients": 3,
    "lora": {"rank": 16, "alpha": 4, "target_modules": EVERYWHERE},  # 0.5 MB
    "aggregation": {"quorum": len(HONEST), "deadline_seconds": 0.1},
}
ENVIRONMENT = {
    "PUBSWAP_SPARE_BYTES": str(2 << 20),
    **constants({"pubswap_server.conductor.maintenance.ORPHAN_SECONDS": 1.0}),
}
DEATHS = (
    None,
    "conductor: aggregated, before commit",
    "conductor: aggregated, committed",
    None,
    "finish upload: committed",
    "update: before commit",
)
LIFE_SECONDS = 4.0
TRAINING_SECONDS = 0.5
ROUND_SECONDS = 30.0


def run(
    count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None
) -> dict[str, Any]:
    """A run of `count` rounds; `stored` is how many unused adapters its disk was made to take.

    `lost` counts the promises that were broken.
    """
    with (
        small_disk(folder / "disk", DISK_BYTES) as disk,
        Lives(folder, ENVIRONMENT, disk.folder / "data") as lives,
        lives.server() as server,
    ):
        lives.begin()
        lives.wait_ready()
        scene = RoomScene(begun(server, rounds=count, seed=seed, **SETTINGS), seed)
        with ThreadPoolExecutor(len(HONEST) + 1) as pool:
            hostile = pool.submit(scene.hoard)
            honest = [pool.submit(scene.work, name) for name in HONEST]
            kills = scene.live(lives, progress, ROUND_SECONDS * count)
            for future in (*honest, hostile):
                future.result()
        free = disk.free()
        scene.check("the run is finished", scene.federation.view().state is RunState.FINISHED)
        scene.broken += lives.failures()
        lives.kill()
        report = verify(ServerSettings(data_dir=lives.data_dir), progress_bar())
        scene.check(f"verified: {report.text()}", report.healthy)
    return {
        "tried": count,
        "lost": len(scene.broken),
        "kills": kills,
        "stored": scene.stored,
        "refused": scene.refused,
        "rounds_freed": report.freed,
        "free_bytes": free,
        "broken": scene.broken[:20],
    }


@dataclass
class RoomScene:
    """The run, and what became of it."""

    federation: Federation
    seed: int
    stored: int = 0
    refused: int = 0
    broken: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def check(self, what: str, holds: bool) -> None:
        """Note what does not hold."""
        if not holds:
            self.broken.append(what)

    def live(self, lives: Lives, progress: Callable[[int], None], seconds: float) -> int:
        """One life after another until the run has ended; returns how many were cut off."""
        deadline, random = time.monotonic() + seconds, Random(self.seed)
        for kills, death in enumerate(itertools.cycle(DEATHS)):
            lives.kill()
            lives.begin(death)
            lives.ended(random.uniform(LIFE_SECONDS / 2, LIFE_SECONDS))
            lives.kill()
            lives.begin()
            lives.wait_ready()
            view = self.federation.view()
            progress(view.round - 1)
            late = time.monotonic() > deadline
            self.check(f"round {view.round} is not closed", not late)
            if late or view.state is RunState.FINISHED:
                self.over.set()
                return 2 * (kills + 1)
        raise AssertionError("unreachable")

    def work(self, name: str) -> None:
        """An honest member: an adapter and an update a round."""
        api, run_ = self.federation.members[name], self.federation.run.id
        while not self.over.is_set():
            task = api.task(run_, wait=1)
            if task.kind is TaskKind.TRAIN:
                time.sleep(TRAINING_SECONDS)
                adapter = self.federation.adapter(seed_for(self.seed, name, task.round))
                self.federation.submit(name, task.round, adapter)

    def hoard(self) -> None:
        """The other one: adapters that it never hands in, as many as it can."""
        run_ = self.federation.run
        token, in_round = self.federation.tokens[HOSTILE], {}
        with CoordinatorClient(self.federation.server.url, token, ONCE) as api:
            for number in itertools.count():
                if self.over.is_set():
                    return
                adapter = self.federation.adapter(seed_for(self.seed, HOSTILE, number))
                try:
                    before = api.task(run_.id, wait=0).round
                    api.put_blob(run_.id, encode_adapter(run_.model.layout, adapter))
                    same = api.task(run_.id, wait=0).round == before
                except PubSwapError as error:
                    self.refused += error.code == "too_many_adapters"
                    time.sleep(0.05)
                    continue
                self.stored += 1
                in_round[before] = in_round.get(before, 0) + same
                self.check(
                    f"{in_round[before]} unused adapters in round {before}",
                    in_round[before] <= ADAPTERS_A_ROUND,
                )
