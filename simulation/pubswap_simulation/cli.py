"""The researcher's commands; nothing heavy is imported before one runs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pubswap_simulation.reporting.commands import report


class Backend(StrEnum):
    """Where the runs of a sweep are carried out."""

    LOCAL = "local"
    RAY = "ray"


def simulate(
    recipe: Annotated[str, typer.Argument(help="A recipe's file, or a shipped recipe's name.")],
    out: Annotated[Path, typer.Option(help="The results store.")] = Path("simulations"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value: replace a value of the recipe, such as rounds=2."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="All settings and seeds of the recipe's [sweep].")
    ] = False,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="With --sweep, one more axis: key=value,value,..., such as method.period=2,4,8."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="With --sweep, seeds instead of the recipe's: 0-4, or 0,3,7.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --sweep, number of parallel runs; by default one for each device, on Ray "
            "all.",
        ),
    ] = None,
    backend: Annotated[
        Backend, typer.Option(help="With --sweep, run on this machine or on a cluster's nodes.")
    ] = Backend.LOCAL,
    resources: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            help="key=value: resources for each run on a cluster, as an option of a Ray task, such "
            "as num_gpus=1.",
        ),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="With --sweep, GPUs to use: cuda:0,cuda:1.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A client.toml with settings for all members.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="The base model's precision: auto, float32 or bfloat16.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="transformers, vllm or vllm-server.")] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads of each run; by default all cores, divided among the runs."),
    ] = None,
    plugin: Annotated[
        Path | None,
        typer.Option(help="A Python file with a strategy, rule or advantage of your own."),
    ] = None,
    keep_work: Annotated[
        bool, typer.Option("--keep-work", help="Keep the coordinator's and the members' state.")
    ] = False,
    keep_adapters: Annotated[
        bool, typer.Option("--keep-adapters", help="Keep the final and the best adapter.")
    ] = False,
) -> None:
    """Run a recipe's whole federation on this machine, in one process.

    It uses the real coordinator and the real daemons, which share one model and take turns. On a
    CPU the final adapter equals that of separate daemons bit for bit, if these have a quorum of all
    and method.sampling_check = "off", as here. You can stop it at any time and start it again: it
    continues where it was and repeats nothing.

    `--sweep` runs each setting with each seed in its own process. The axis `members` adds
    baselines: pooled is one client with all private sets, alone is each client by itself.

    `--backend ray` sends the runs to the Ray cluster at RAY_ADDRESS or of this machine. All nodes
    must share the store's folder. If a node dies, its run continues from its last step on another
    one. For Slurm, docs/research.md has a job array.
    """
    from rich.console import Console

    from pubswap_client.daemon.signals import until_stopped
    from pubswap_protocol.errors import InvalidSettings
    from pubswap_simulation.jobs import Planner, parse_axes, parse_seeds, parse_values, run_specs
    from pubswap_simulation.sweep import run_locally, run_on_cluster

    if backend is Backend.LOCAL and resources:
        raise InvalidSettings("--resource is for --backend ray.")
    if backend is not Backend.LOCAL and (not sweep or devices is not None):
        raise InvalidSettings(
            "--backend is for --sweep, without --devices: ask for GPUs with --resource."
        )
    with until_stopped():
        planner = Planner(recipe, out, parse_values(overrides or ()), plugin)
        if sweep:
            single_seed = () if seed is None else (seed,)
            planned = planner.sweep(parse_seeds(seeds) or single_seed, parse_axes(vary or ()))
        elif vary or seeds is not None:
            raise InvalidSettings("--vary and --seeds are for --sweep; use --set and --seed.")
        else:
            planned = planner.jobs(seed)
        options = {"device": device, "dtype": dtype, "engine": engine, "threads": threads}
        specs = run_specs(planned, out, config, options, keep_work, keep_adapters)
        if backend is Backend.LOCAL:
            status = run_locally(specs, Console(markup=False), jobs, devices)
        else:
            from pubswap_simulation.clusters import RayCluster

            cluster = RayCluster(jobs, parse_values(resources or ()))
            status = run_on_cluster(specs, Console(markup=False), cluster.outcomes)
    raise typer.Exit(status)


def register(app: typer.Typer) -> None:
    """Add `simulate` and `report`."""
    app.command("simulate")(simulate)
    app.command("report")(report)
