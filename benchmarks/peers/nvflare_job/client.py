"""A client that sends a given update instead of training, and logs when it got each model."""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import nvflare.client as flare
import torch
from coordination.payload import error, tensors


def main() -> None:
    """Receive and send until the job is done; the last model is checked after its time is taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    flare.init()
    index = int(flare.get_site_name().rsplit("-", 1)[-1]) - 1
    numbers = np.load(options.folder / f"update-{index}.npy")
    update = {
        name: torch.from_numpy(view) for name, view in tensors(numbers, options.megabytes).items()
    }
    with (options.log / f"client-{index}.jsonl").open("a") as log:
        for round_ in range(1, options.rounds + 1):
            model = flare.receive()
            at = time.monotonic()
            received = sum(value.nbytes for value in model.params.values())
            entry = {"round": round_, "at": at, "received": received, "sent": numbers.nbytes}
            if round_ == options.rounds:
                entry["error"] = error(
                    model.params, np.load(options.folder / "mean.npy"), options.megabytes
                )
            log.write(json.dumps(entry) + "\n")
            log.flush()
            flare.send(flare.FLModel(params=update, metrics={"accuracy": 0.0}))


if __name__ == "__main__":
    main()
