"""One client's upload and download against curl and nginx, in turns, on the same disk.

Ours is `CoordinatorClient`, from bytes in memory to the receipt, and from the digest to checked
bytes in memory: hashed at both ends, every number checked, file, folder and transaction synced.
nginx hashes, checks and syncs nothing. curl downloads to a file, and in turns also to /dev/null,
because discarding bytes costs less than a real download.
"""

import os
from pathlib import Path
from statistics import median
from typing import Any

from coordination.limits import nginx
from coordination.payload import TOLERANCE, Payload
from coordination.rounds import our_fleet
from coordination.serving import serving
from coordination.telling import Tell

MEGABYTES, QUICK_MEGABYTES = 140, 1
REPEATS, QUICK_REPEATS = 7, 2


def measure(quick: bool, scratch: Path, tell: Tell) -> dict[str, Any]:
    """Seconds of each repeat after a warm-up."""
    repeats = QUICK_REPEATS if quick else REPEATS
    folder = scratch / "transfers"
    payload = Payload(QUICK_MEGABYTES if quick else MEGABYTES, 1, folder / "payload").write()
    size = 4 * payload.parameters
    file = folder / "body"
    file.write_bytes(payload.update(0).read_bytes()[-size:])
    seconds: dict[str, list[float]] = {
        name: [] for way in ("upload", "download") for name in (f"our_{way}", f"nginx_{way}")
    }
    seconds["nginx_download_to_nowhere"] = []
    with (
        serving(folder / "ours") as coordinator,
        our_fleet(coordinator, payload, 1 + repeats) as fleet,
        nginx.nginx(folder / "nginx") as url,
    ):
        for repeat in range(1, 2 + repeats):
            tell(f"transfers of {payload.megabytes} MB, {repeat} of {1 + repeats}")
            os.sync()  # so that neither waits for what the other has left to write
            seconds["nginx_upload"].append(nginx.put(f"{url}/{repeat}", file))
            os.sync()
            went = fleet.race(repeat).measured[0]
            assert fleet.check() < TOLERANCE
            seconds["our_upload"].append(went["upload"])
            seconds["our_download"].append(went["download"])
            seconds["nginx_download"].append(nginx.get(f"{url}/{repeat}", size, folder / "got"))
            nowhere = nginx.get(f"{url}/{repeat}", size, Path(os.devnull))
            seconds["nginx_download_to_nowhere"].append(nowhere)
    measured = {name: times[1:] for name, times in seconds.items()}
    return {
        "bytes": size,
        "seconds": measured,
        "medians": {name: median(times) for name, times in measured.items()},
        "note": "nginx neither hashes, checks nor syncs; ours does before its receipt",
    }


def figures(details: dict[str, Any]) -> dict[str, float]:
    """Our rate / nginx's."""
    medians = details["medians"]
    return {
        f"{way}_vs_nginx": medians[f"nginx_{way}"] / medians[f"our_{way}"]
        for way in ("upload", "download")
    }
