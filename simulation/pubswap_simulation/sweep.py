"""Many runs, on this machine or on a cluster."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial

from rich.console import Console
from rich.text import Text

from pubswap_client.operator.tables import rounds_table
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.verifiers import verifier_version
from pubswap_protocol.verifiers.plugin import working_trees
from pubswap_simulation.display import SweepDisplay, sweep_table
from pubswap_simulation.job import RunSpec
from pubswap_simulation.processes import Outcome, local_outcomes
from pubswap_simulation.results import read_result
from pubswap_simulation.worker import LOG

# Yields the outcomes of runs as they end, on this machine or on a cluster. Closing it early stops
# the runs under way.
Outcomes = Callable[[Sequence[RunSpec]], Generator[Outcome]]


def carry_out(
    specs: Sequence[RunSpec], outcomes_of: Outcomes, finish: Callable[[RunSpec, str], None]
) -> dict[str, str]:
    """Carry out every run that is not done yet; `finish` gets each one's outcome in words.

    Returns failures by the run's key.
    """
    failed = {}
    for spec in specs:
        spec.folder.mkdir(parents=True, exist_ok=True)  # lets a report list it as not done
        if spec.done:
            finish(spec, "already done" + (f", {note}" if (note := other_rules(spec)) else ""))
    with closing(outcomes_of([spec for spec in specs if not spec.done])) as outcomes:
        for spec, failure in outcomes:
            if failure is None:
                finish(spec, "done")
            else:
                failed[spec.key] = failure
                finish(spec, f"failed: {failure} (log: {spec.folder / LOG})")
    return failed


def other_rules(spec: RunSpec) -> str | None:
    """A note on a result that another version of the verifier judged, or None."""
    recorded = read_result(spec.folder).run.verifier_version
    with working_trees():
        current = verifier_version(spec.job.settings.verifier)
    if recorded == current:
        return None
    return f"judged by {recorded} and not by {current}: remove {spec.folder} to run it again"


def run_locally(
    specs: Sequence[RunSpec], console: Console, jobs: int | None, devices: str | None
) -> int:
    """Carry out every run that is not done yet and print the outcomes; returns the exit status."""
    names = devices.split(",") if devices else []
    count = jobs or len(names) or 1
    if count > 1:
        specs = [_with_threads(spec, count) for spec in specs]
    environments = [
        visible | thread_limit(specs[0].options) for visible in visible_devices(count, names)
    ]
    with SweepDisplay(console, len(specs)) as display:
        outcomes_of = partial(local_outcomes, environments, display.update)
        failed = carry_out(specs, outcomes_of, display.finish)
    return _concluded(specs, failed, console)


def run_on_cluster(specs: Sequence[RunSpec], console: Console, outcomes_of: Outcomes) -> int:
    """The same on a cluster, whose scheduler decides where and when."""
    logs = specs[0].folder.parent / "*" / LOG
    console.print(f"{len(specs)} runs, with logs {logs}", soft_wrap=True, highlight=False)
    with SweepDisplay(console, len(specs)) as display:
        failed = carry_out(specs, outcomes_of, display.finish)
    return _concluded(specs, failed, console)


def _concluded(specs: Sequence[RunSpec], failed: Mapping[str, str], console: Console) -> int:
    if len(specs) == 1 and specs[0].done:
        console.print(rounds_table(read_result(specs[0].folder).run.rounds))
    console.print(sweep_table(specs, failed))
    for key, reason in failed.items():
        console.print(Text("failed", "red"), f"{key}: {reason}", soft_wrap=True)
    if failed:
        console.print("Repeat the command to retry these from where they stopped.")
    return 1 if failed else 0


def thread_limit(options: Mapping[str, int | str]) -> dict[str, str]:
    """The limit as libgomp reads it: once, before torch is told the number of threads."""
    return {"OMP_NUM_THREADS": str(options["threads"])} if "threads" in options else {}


def visible_devices(count: int, devices: Sequence[str]) -> list[dict[str, str]]:
    """The environment of each process: it sees its own GPU only, and does not fall back to CPU."""
    if not devices:
        return [{}] * count
    environments: list[dict[str, str]] = []
    for number in range(count):
        name = devices[number % len(devices)].strip()
        kind, _, index = name.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
            raise InvalidSettings(f"--devices {name}: give them as cuda:0,cuda:1.")
        visible = _visible(index) if kind == "cuda" else ""
        environments.append({"CUDA_VISIBLE_DEVICES": visible, "PUBSWAP_CLIENT_DEVICE": kind})
    return environments


def _visible(index: str) -> str:
    """The GPU of this number among those that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not allowed or not index:
        return index or allowed or "0"
    names = allowed.split(",")
    if int(index) >= len(names):
        raise InvalidSettings(f"--devices cuda:{index}: CUDA_VISIBLE_DEVICES allows {allowed}.")
    return names[int(index)]


def _with_threads(spec: RunSpec, processes: int) -> RunSpec:
    """The run with its share of the CPU's threads, unless their number is given."""
    share = max(1, _cores() // processes)
    return spec.model_copy(update={"options": {"threads": share, **spec.options}})


def _cores() -> int:
    """The cores that this process may use; macOS, which has no such limit, tells all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
