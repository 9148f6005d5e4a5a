"""Flower's own FedAvg, which logs the times of its rounds."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from coordination.payload import error, tensors
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    """Times each round, from the start of `configure_train` to the end of `aggregate_train`."""

    def __init__(self, config: Any) -> None:
        clients = config["clients"]
        super().__init__(
            fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        self._config = config
        self._mean = np.load(Path(config["folder"]) / "mean.npy")
        self._began = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Do as FedAvg does, once all nodes are connected."""
        while len(list(grid.get_node_ids())) < self._config["clients"]:
            time.sleep(0.1)
        self._began = time.monotonic()
        self._note({"round": server_round, "began": self._began})
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Do as FedAvg does, and check the mean after the clock has stopped."""
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        seconds = time.monotonic() - self._began
        failures = sum(reply.has_error() for reply in replies)
        entry = {"round": server_round, "seconds": seconds, "failures": failures}
        if arrays is not None and metrics is not None:
            mean = {name: array.numpy() for name, array in arrays.items()}
            entry["error"] = error(mean, self._mean, self._config["megabytes"])
            # Means over the clients of what each received and sent.
            entry["received"], entry["sent"] = metrics["received"], metrics["sent"]
        self._note(entry)
        return arrays, metrics

    def _note(self, entry: dict[str, Any]) -> None:
        with Path(self._config["log"]).open("a") as file:
            file.write(json.dumps(entry) + "\n")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Begin at zeros, and run the configured rounds."""
    config = context.run_config
    strategy = Timed(config)
    zeros = np.zeros_like(np.load(Path(config["folder"]) / "mean.npy"))
    adapter = {name: Array(view) for name, view in tensors(zeros, config["megabytes"]).items()}
    strategy.start(grid, ArrayRecord(adapter), num_rounds=config["rounds"], timeout=3600)
