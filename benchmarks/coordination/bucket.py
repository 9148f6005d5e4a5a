"""The coordinator's CPU for a round, with adapters sent through it or straight to the bucket.

Both ways use the same adapters, SQLite and the same kind of store: a real S3 server, rclone. CPU
seconds are the coordinator's alone, from the first byte sent until the last client has the new
adapter.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import psutil

from coordination.payload import TOLERANCE, Payload
from coordination.rounds import our_fleet
from coordination.serving import serving
from coordination.telling import Tell

CLIENTS, QUICK_CLIENTS = 64, 2
MEGABYTES, QUICK_MEGABYTES = 35, 1


def measure(quick: bool, scratch: Path, tell: Tell) -> dict[str, Any]:
    """One round each way, on a fresh coordinator with an empty bucket."""
    clients, megabytes = (QUICK_CLIENTS, QUICK_MEGABYTES) if quick else (CLIENTS, MEGABYTES)
    payload = Payload(megabytes, clients, scratch / "bucket-payload").write()
    by_way = {}
    for way in ("through", "direct"):
        folder = scratch / f"bucket-{way}"
        by_way[way] = _round(payload, way == "direct", folder)
        tell(f"{payload.name}, {way}: {by_way[way]['cpu_seconds']:.2f} s of CPU")
        rmtree(folder)
    rmtree(payload.folder)
    return {"round": payload.name, **by_way}


def _round(payload: Payload, direct: bool, folder: Path) -> dict[str, float]:
    from support.coordinator.s3 import BUCKET, serving_s3

    with serving_s3(folder / "s3") as s3:
        storage = {"PUBSWAP_BLOB_URL": f"s3://{BUCKET}/bench", **s3.environment()}
        if direct:
            storage["PUBSWAP_BUCKET_ENDPOINT"] = s3.url
        buckets = (f"{s3.url}/{BUCKET}/bench",) if direct else ()
        with (
            _environment(storage),
            serving(folder / "ours") as coordinator,
            our_fleet(coordinator, payload, 1, buckets) as fleet,
        ):
            process = psutil.Process(coordinator.pid)
            cpu_at_start = _cpu(process)
            went = fleet.race(1)
            cpu = _cpu(process) - cpu_at_start
            checked = fleet.check()
            assert checked < TOLERANCE, f"{checked} from numpy's mean"
    return {"cpu_seconds": cpu, "seconds": went.seconds}


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    previous = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def figures(details: dict[str, Any]) -> dict[str, float]:
    """CPU with bytes through the coordinator / CPU with bytes straight to the bucket."""
    cpu = {way: details[way]["cpu_seconds"] for way in ("through", "direct")}
    return {"bucket_cpu_ratio": cpu["through"] / cpu["direct"]}
