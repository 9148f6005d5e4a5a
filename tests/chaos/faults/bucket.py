"""Connections to a bucket cut at random bytes while adapters go straight there and come from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from chaos.faults.cuts import LAYOUT, QUICK, CutTally, cutting, hand_in, new_member
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import DamagedBlob, DigestMismatch, UnknownBlob
from pubswap_protocol.tensors.adapter import encode_adapter
from support.chaos.proxy import FaultProxy, seeded
from support.coordinator.processes import serve
from support.coordinator.s3 import BUCKET, serving_s3
from support.forked import ForkedProcesses


def run(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Cut `count` connections between a member and the bucket, half of them in uploads.

    The mean of one member's adapter is that adapter, which is what comes back. Returns
    `tried`, `lost` and `corrupt` as `cuts.run` does, and the bytes that the bucket's connections
    carried over the adapters' own, at most 1.
    """
    tally, straight = CutTally(), 0
    with serving_s3(folder / "s3") as s3, FaultProxy(int(s3.url.rsplit(":", 1)[-1])) as proxy:
        places = {"PUBSWAP_BLOB_URL": f"s3://{BUCKET}/p", "PUBSWAP_BUCKET_ENDPOINT": proxy.url}
        with ForkedProcesses(folder / "logs") as processes:
            coordinator = serve(processes, folder, env=places | s3.environment())
            with coordinator.api as api:
                run_, token = new_member(coordinator)
                number = 0
                while tally.cuts < count:
                    processes.check()
                    rng = np.random.default_rng((seed, number))
                    tensors = {
                        name: rng.standard_normal(shape, np.float32)
                        for name, shape in LAYOUT.tensors.items()
                    }
                    data = encode_adapter(LAYOUT, tensors)
                    with _cut(tally, proxy, (api.url, token), f"{seed}/{number}/up") as member:
                        digest = member.put_blob(run_, data)
                    number += 1
                    hand_in(api.url, (run_, token), digest, number)
                    with _cut(tally, proxy, (api.url, token), f"{seed}/{number}/down") as member:
                        _fetch(tally, member, run_, data, number)
                straight = tally.sent
    wanted = 2 * number * len(data)
    found = {"tried": tally.cuts, "lost": tally.lost, "corrupt": tally.corrupt}
    return found | {"direct_share": min(1.0, straight / wanted)}


def _fetch(tally: CutTally, member: CoordinatorClient, run_: str, data: bytes, round_: int) -> None:
    """The next round's adapter, which is the one that was handed in."""
    task = member.task(run_)
    while task.round <= round_:
        task = member.task(run_)
    try:
        found = member.blob(run_, str(task.adapter))
    except (UnknownBlob, DamagedBlob):
        tally.lost += 1
    except DigestMismatch:
        tally.corrupt += 1
    else:
        tally.corrupt += found != data or task.adapter != digest_of(data)


@contextmanager
def _cut(
    tally: CutTally, proxy: FaultProxy, seat: tuple[str, str], key: str
) -> Iterator[CoordinatorClient]:
    """A member's client whose connections to the bucket are cut."""
    way = key.rpartition("/")[2]
    proxy.plan = seeded(int.from_bytes(key.encode()), cutting(way))
    before = proxy.cuts, proxy.up + proxy.down
    allowed = (f"{proxy.url}/{BUCKET}/p",)
    with CoordinatorClient(*seat, QUICK, buckets=lambda: allowed) as member:
        yield member
    tally.cuts += proxy.cuts - before[0]
    tally.sent += proxy.up + proxy.down - before[1]
