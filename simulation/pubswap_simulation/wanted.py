"""From a command line to orders: which jobs, in which folders, and how they are done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pubswap_client.settings import load_settings
from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.job import Job
from pubswap_simulation.order import Order
from pubswap_simulation.plan import Planner
from pubswap_simulation.results import RUNS
from pubswap_simulation.values import parse_axes, parse_given, parse_seeds


@dataclass(frozen=True)
class Wanted:
    """What `pubswap simulate` was given."""

    recipe: str
    store: Path
    given: tuple[str, ...]
    seed: int | None
    sweep: bool
    vary: tuple[str, ...]
    seeds: str | None
    config: Path | None
    options: Mapping[str, str | int | None]
    keep_work: bool
    keep_adapters: bool


def wanted_orders(wanted: Wanted) -> list[Order]:
    """One order for each run. Raises InvalidSettings or InvalidProblems before any begins."""
    planner = Planner(wanted.recipe, wanted.store, parse_given(wanted.given))
    if not wanted.sweep:
        if wanted.vary or wanted.seeds is not None:
            raise InvalidSettings("--vary and --seeds are for --sweep; use --set and --seed.")
        jobs = planner.one(wanted.seed)
    else:
        seeds = parse_seeds(wanted.seeds) or (() if wanted.seed is None else (wanted.seed,))
        jobs = planner.sweep(seeds, parse_axes(wanted.vary))
    options = {key: value for key, value in wanted.options.items() if value is not None}
    load_settings(wanted.config, **options)  # refused now rather than by each run
    common = _common(jobs)
    return [
        Order(
            job=job,
            title=job.title(without=common),
            folder=(wanted.store / RUNS / job.key()).resolve(),
            config=wanted.config,
            options=options,
            keep_work=wanted.keep_work,
            keep_adapters=wanted.keep_adapters,
        )
        for job in jobs
    ]


def _common(jobs: Sequence[Job]) -> set[str]:
    """The axes on which all jobs have the same value."""
    values: dict[str, set[str]] = {}
    for job in jobs:
        for key, value in job.setting.items():
            values.setdefault(key, set()).add(repr(value))
    return {key for key, found in values.items() if len(found) == 1}
