"""`pubswap demo`: the whole federation on this machine."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from pubswap_client.daemon.signals import until_stopped
from pubswap_client.operator.connecting import (
    DEFAULT_URL,
    TokenFile,
    Url,
    connect,
)


def demo(
    model: Annotated[
        Literal["tiny", "smollm2"],
        typer.Option(help="tiny: made here; smollm2: SmolLM2-135M-Instruct, see docs/demo.md."),
    ] = "tiny",
    method: Annotated[str | None, typer.Option(help="pubswap, fedavg or fedprox.")] = None,
    strategy: Annotated[str | None, typer.Option(help="keep or random.")] = None,
    period: Annotated[int | None, typer.Option(help="Make every n-th step public.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="GRPO steps a round (tau).")] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed; also draws the data.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of organisations.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Epsilon of differential privacy.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("demo-out"),
) -> None:
    """Train a model in a federation of real processes on this machine, in minutes.

    A coordinator, four clients with private problems of different topics, and an evaluator.
    It first prints the name of the run file; the options override that file.
    """
    from pubswap_client.demo.demo import prepare_folder, run_demo
    from pubswap_client.demo.demos import DEMOS

    overrides = {
        "method": method,
        "method.strategy": strategy,
        "method.period": period,
        "rounds": rounds,
        "local_steps": local_steps,
        "seed": seed,
        "clients": clients,
        "privacy.epsilon": epsilon,
    }
    console = Console(markup=False)
    console.print(f"run file {DEMOS[model].run_file}", soft_wrap=True)
    prepare_folder(out)
    with until_stopped():
        given = {key: value for key, value in overrides.items() if value is not None}
        run_demo(DEMOS[model], out, given, console)


def demo_federate(
    out: Annotated[Path, typer.Option(help="Folder for the members' folders.")] = Path("demo-out"),
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Set up the demo's run, data and members on a coordinator that is already running.

    This is what `docker compose up` does first; each member then runs in its own container.
    """
    from pubswap_client.demo.demos import TINY
    from pubswap_client.demo.federation import federate

    with connect(url, token_file) as api:
        run, _ = federate(api, TINY, out, {})
    typer.echo(f"Run {run} has begun; members in {out / 'members'}.")
