"""One process of a part: makes measurements in order, and writes each as soon as it is made.

    python -m benchmarks.gpu.job WORK.json RECORD.jsonl

WORK.json has its measurements, device and time. A failed measurement is recorded and the next one
begins, unless the GPU itself is lost: then the process ends, and the caller starts another for the
rest.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import Measurement

Record = Callable[[dict[str, Any]], None]


def make(
    measurements: Sequence[Measurement],
    device: str,
    tiny: bool,
    models: Path,
    scratch: Path,
    seconds: float,
    record: Record,
) -> bool:
    """Make the measurements in order; returns False if the device was lost on the way."""
    import torch

    from benchmarks.gpu.context import Context, NotRun
    from benchmarks.gpu.measures import WORKS

    context = Context(torch.device(device), tiny, models, scratch, time.monotonic() + seconds)
    for measurement in measurements:
        started = time.monotonic()
        result: dict[str, Any] = {"name": measurement.name}
        try:
            result["figures"] = WORKS[measurement.work](
                context, measurement.model, **measurement.options
            )
        except NotRun as reason:
            result["not_run"] = str(reason)
        except Exception as error:
            result["failed"] = f"{type(error).__name__}: {error}"[:2000]
            result["traceback"] = traceback.format_exc()[-6000:]
        result["wall_seconds"] = time.monotonic() - started
        record(result)
        if "failed" in result:
            context.free()
            if not _alive(torch.device(device)):
                return False
    return True


def _alive(device: Any) -> bool:
    """Whether the GPU still computes; after some errors nothing more works in the process."""
    import torch

    try:
        return bool(torch.ones(2, device=device).sum().item() == 2)
    except RuntimeError:
        return False


def writing(path: Path) -> Record:
    """A function that appends a record to a file at once, so that later failures lose nothing."""

    def record(result: dict[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")

    return record


def main() -> int:
    """Make the measurements of the command line; returns 3 if the GPU was lost."""
    import logging
    import warnings

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    warnings.filterwarnings("ignore")
    work = json.loads(Path(sys.argv[1]).read_bytes())
    measurements = [Measurement(**one) for one in work["measurements"]]
    done = make(
        measurements,
        work["device"],
        work["tiny"],
        Path(work["models"]),
        Path(work["scratch"]),
        work["seconds"],
        writing(Path(sys.argv[2])),
    )
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
