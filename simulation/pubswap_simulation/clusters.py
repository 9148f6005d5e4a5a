"""Runs on the nodes of a Ray cluster.

All nodes see the store, the model and the data at the same paths. As on one machine, each run is a
process of its own. A node that dies therefore leaves what a killed process leaves, and the run
continues from there on another node.
"""

import logging
import os
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pubswap_client.recipes.tables import Value
from pubswap_client.state.lock import holder
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.job import RunSpec
from pubswap_simulation.processes import Outcome, followed, started

Resources = Mapping[str, Value]

# A file server keeps a dead node's locks for one or two minutes.
_LOCK_SECONDS = 300
_POLL_SECONDS = 1.0
_LONGEST = 500


@dataclass(frozen=True)
class Order:
    """A node's work: a run, the folder to run it in, and additions to its environment."""

    spec: str
    folder: str
    environment: Mapping[str, str]

    def __call__(self) -> str | None:
        """Carry it out on this node; returns why it failed, or None if it is done."""
        spec = RunSpec.read(self.spec)
        deadline = time.monotonic() + _LOCK_SECONDS
        while holder(spec.folder) is not None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return followed(started(spec, self.environment, Path(self.folder)), spec)


def _order(spec: RunSpec) -> Order:
    threads = spec.options.get("threads", 1)
    spec = spec.model_copy(update={"options": {**spec.options, "threads": threads}})
    # A node has an environment of its own, so the members' settings in ours must be passed on.
    environment = {
        key: value for key, value in os.environ.items() if key.startswith("PUBSWAP_CLIENT_")
    }
    return Order(
        spec.model_dump_json(), str(Path.cwd()), environment | {"OMP_NUM_THREADS": str(threads)}
    )


def _carry_out(order: Order) -> str | None:
    return order()


class RayCluster:
    """The Ray cluster at RAY_ADDRESS, or the one that this machine is a node of."""

    def __init__(self, jobs: int | None, resources: Resources) -> None:
        """Run at most `jobs` at a time, each with `resources`: options of a Ray task."""
        self._jobs = jobs
        self._resources = dict(resources)

    def outcomes(self, specs: Sequence[RunSpec]) -> Generator[Outcome]:
        """Yield each run's outcome as it ends. Raises InvalidSettings without a cluster."""
        # Send no usage statistics to Ray's makers. Ray reads this when it is imported.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        waiting = list(reversed(specs))
        try:
            cluster = ray.init("auto", log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise InvalidSettings(
                "No Ray cluster answers. Set RAY_ADDRESS, or make this machine one with `ray "
                f"start --head --include-dashboard=false --disable-usage-stats`: {error}"
            ) from None
        with cluster:  # leaving it ends its tasks
            running: dict[Any, RunSpec] = {}
            while waiting or running:
                while waiting and len(running) < (self._jobs or len(specs)):
                    spec = waiting.pop()
                    running[self._task(spec).remote(_order(spec))] = spec
                [ended], _ = ray.wait(list(running), num_returns=1)
                try:
                    failure = ray.get(ended)
                except ray.exceptions.RayError as error:
                    failure = _in_words(error)
                yield running.pop(ended), failure

    def _task(self, spec: RunSpec) -> Any:
        import ray

        options = {"num_cpus": spec.options.get("threads", 1), **self._resources}
        try:
            return ray.remote(_carry_out).options(**options)
        except (TypeError, ValueError) as error:
            raise InvalidSettings(f"--resource, of a Ray task: {_in_words(error)}") from None


def _in_words(error: BaseException) -> str:
    """An error's text, which may be a whole log, as one line."""
    return " ".join(str(error).split())[:_LONGEST] or type(error).__name__
