"""Connections cut at random bytes while adapters are sent and fetched: the chaos and its count.

python tests/chaos/cuts.py --count 1000 --seed 1
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.demo.demos import MODEL
from pubswap_protocol import paths
from pubswap_protocol.errors import DamagedBlob, DigestMismatch, UnknownBlob
from pubswap_protocol.messages import CreateInvite, CreateRun, SetKind, SubmitUpdate, UpdateMetrics
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import write_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout, encode_adapter
from support.chaos.proxy import Fault, FaultProxy, seeded
from support.coordinator.coordinator import good_hello
from support.coordinator.processes import Coordinator, serve, sums
from support.forked import ForkedProcesses

# 32 MiB: cuts are some 8 MiB apart, so that most adapters see several of them.
LAYOUT = AdapterLayout(
    tensors={
        f"base_model.model.layers.{n}.{name}.weight": shape
        for n in range(16)
        for name, shape in {"lora_A": (64, 4096), "lora_B": (4096, 64)}.items()
    }
)
SPACING = 8 << 20
QUICK = Backoff(base_seconds=0.02, cap_seconds=0.5, tries=50)


@dataclass
class CutTally:
    """What became of the adapters."""

    payload: int = 0
    sent: int = 0  # as the proxy saw it come in, headers included
    lost: int = 0
    corrupt: int = 0
    cuts: int = 0

    def result(self) -> dict[str, Any]:
        """The chaos's entry in the table."""
        return {
            "tried": self.cuts,
            "lost": self.lost,
            "corrupt": self.corrupt,
            "resent_share": self.sent / self.payload - 1,
        }


def cutting(thick: str) -> Callable[[Random], Fault]:
    """Draws of faults: three in four cut the adapter's bytes, the others those the other way."""

    def draw(random: Random) -> Fault:
        reset = random.random() < 0.5
        fat = random.random() < 0.75
        at = int(random.expovariate(1 / SPACING)) if fat else random.randrange(2000)
        if (thick == "up") == fat:
            return Fault(cut_up=at, reset=reset)
        return Fault(cut_down=at, reset=reset)

    return draw


def run(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Cut `count` connections, half of them in uploads; the same seed cuts at the same bytes.

    Returns how many were `tried`, acknowledged adapters that were `lost`, those that came back
    `corrupt`, and `resent_share`: bytes beyond the adapters' own, over the adapters' own.
    """
    tally = CutTally()
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api:
            member = new_member(coordinator)
        port = int(coordinator.api.url.rsplit(":", 1)[-1])
        number = 0
        while tally.cuts < count:
            processes.check()
            digest = _one_adapter(tally, port, member, (seed, number))
            number += 1
            hand_in(coordinator.api.url, member, digest, number)
    return tally.result()


def new_member(coordinator: Coordinator) -> tuple[str, str]:
    """A run that has begun, and the token of its one member."""
    settings = RunSettings(
        method="fedavg",
        verifier="exact",
        chat_template="none",
        clients=1,
        rounds=100_000,
        local_steps=1,
    )
    card = model_card(MODEL, settings.lora, "small", None).model_copy(update={"layout": LAYOUT})
    api = coordinator.api
    run_ = api.create_run(CreateRun(name="cuts", settings=settings, model=card))
    api.put_tokenizer(run_.id, (MODEL / "tokenizer.json").read_bytes())
    for kind in SetKind:
        path = coordinator.folder / f"{kind.value}.jsonl"
        write_problems(path, sums(1, 400))
        api.put_set(run_.id, kind, path.read_bytes())
    api.move_run(run_.id, paths.RUN_OPEN)
    invite = api.invite(run_.id, CreateInvite(name="a"))
    with CoordinatorClient(api.url) as anonymous:
        token = anonymous.enroll(invite.invite).token
    with CoordinatorClient(api.url, token) as member:
        member.hello(run_.id, good_hello(run_))
        api.move_run(run_.id, paths.RUN_START)
    return run_.id, token


def _one_adapter(tally: CutTally, port: int, member: tuple[str, str], key: tuple[int, int]) -> str:
    """Send an adapter through cuts, and fetch it through others; returns its digest."""
    rng = np.random.default_rng(key)
    data = encode_adapter(
        LAYOUT,
        {n: rng.standard_normal(shape, np.float32) for n, shape in LAYOUT.tensors.items()},
    )
    with _cut(tally, port, member, key, "up", len(data)) as api:
        digest = api.put_blob(member[0], data)
    try:
        with _cut(tally, port, member, key, "down", len(data)) as api:
            found = api.blob(member[0], digest)
    except (UnknownBlob, DamagedBlob):
        tally.lost += 1
    except DigestMismatch:
        tally.corrupt += 1
    else:
        tally.corrupt += found != data
    return digest


def hand_in(url: str, member: tuple[str, str], digest: str, round_: int) -> None:
    """Make an adapter its round's update: of others, few are taken in a round."""
    update = SubmitUpdate(adapter=digest, metrics=UpdateMetrics(examples=1, steps=1))
    with CoordinatorClient(url, member[1]) as api:
        while api.task(member[0], 1.0).round < round_:
            pass
        api.submit_update(member[0], round_, update)


@contextmanager
def _cut(
    tally: CutTally, port: int, member: tuple[str, str], key: tuple[int, int], thick: str, size: int
) -> Iterator[CoordinatorClient]:
    """A member's client behind a proxy that cuts; what it moved is counted afterwards."""
    seed = int.from_bytes(f"{key} {thick}".encode())
    with (
        FaultProxy(port, seeded(seed, cutting(thick))) as proxy,
        CoordinatorClient(proxy.url, member[1], QUICK) as api,
    ):
        yield api
    tally.cuts += proxy.cuts
    tally.payload += size
    tally.sent += proxy.up if thick == "up" else proxy.down


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        json.dump(run(given.count, given.seed, Path(folder)), sys.stdout)


if __name__ == "__main__":
    main()
