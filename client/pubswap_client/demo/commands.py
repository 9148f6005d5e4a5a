"""`pubswap demo`: the whole federation on this machine."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.demo.federation import MODEL, PRIVATE_FILE, DemoFederation, federate
from pubswap_client.demo.processes import Processes, free_port
from pubswap_client.demo.report import plot_curve, print_report, summarise, write_summary
from pubswap_client.demo.watch import watch_run
from pubswap_client.operator.commands import (
    DEFAULT_TOKEN_FILE,
    DEFAULT_URL,
    TokenFile,
    Url,
    connect,
    operator_token,
)
from pubswap_client.rollout.peft_folder import write_peft_folder
from pubswap_protocol.errors import InvalidSettings

READY_SECONDS = 60.0

# Spinning OpenMP threads of several processes on few cores slow each other many times over.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run_demo(out: Path, overrides: Mapping[str, Any], console: Console) -> None:
    """Run the whole federation in `out`, and leave its results there."""
    started = time.monotonic()
    url = f"http://127.0.0.1:{free_port()}"
    with Processes(out / "logs") as processes:
        token = _serve(processes, url, out / "coordinator")
        with CoordinatorClient(url, token, Backoff(tries=5)) as api:
            federation = federate(api, out, overrides)
            _start_members(processes, federation)
            console.print(f"coordinator {url}, {len(federation.clients)} clients, 1 evaluator")
            console.print(f"logs in {out / 'logs'}")
            view = watch_run(api, federation.run, console, processes.check)
            adapter = api.global_adapter(federation.run, "final")
    summary = summarise(view, time.monotonic() - started)
    print_report(view, summary, console)
    write_summary(summary, out / "summary.json")
    plot_curve(summary, out / "curve.png")
    write_peft_folder(out / "adapter", adapter, view.settings.lora, view.model, str(MODEL))
    console.print(f"wrote {out}/summary.json, {out}/curve.png and the PEFT folder {out}/adapter")


def _serve(processes: Processes, url: str, data_dir: Path) -> str:
    """Start the coordinator; returns the operator token once it answers."""
    port = url.rsplit(":", 1)[-1]
    processes.start("coordinator", ["serve", "--port", port, "--data-dir", str(data_dir)])
    with CoordinatorClient(url, backoff=Backoff(tries=1)) as probe:
        wait_until_ready(probe, READY_SECONDS, processes.check)
    return operator_token(data_dir / "operator-token")


def _start_members(processes: Processes, federation: DemoFederation) -> None:
    common = ["--model", str(MODEL), "--threads", "1"]
    for name, state in federation.clients.items():
        own = ["--state", str(state), "--data", str(state / PRIVATE_FILE)]
        processes.start(name, ["client", "start", *own, *common], _ONE_THREAD)
    state = federation.evaluator
    processes.start(state.name, ["evaluate", "--state", str(state), *common], _ONE_THREAD)


_MARK = ".pubswap-demo"


def demo(
    method: Annotated[str | None, typer.Option(help="pubswap, fedavg or fedprox.")] = None,
    strategy: Annotated[str | None, typer.Option(help="keep or random.")] = None,
    swap_period: Annotated[int | None, typer.Option(help="Every which step is public.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="GRPO steps a round (tau).")] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed; also draws the data.")] = None,
    clients: Annotated[int | None, typer.Option(help="Organisations.")] = None,
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("demo-out"),
) -> None:
    """Train a small model in a federation of real processes on this machine, in minutes.

    A coordinator, four clients with private arithmetic of different topics, and an evaluator.
    The run is described by a file that is printed first; the options override it.
    """
    from rich.console import Console

    from pubswap_client.demo.federation import RUN_FILE

    pass
    from pubswap_client.daemon.signals import until_stopped

    given = {
        "method": method,
        "swap.strategy": strategy,
        "swap.period": swap_period,
        "rounds": rounds,
        "local_steps": local_steps,
        "seed": seed,
        "clients": clients,
    }
    console = Console()
    console.print(f"run file {RUN_FILE}", soft_wrap=True)
    prepare_folder(out)
    with until_stopped():
        run_demo(out, {key: value for key, value in given.items() if value is not None}, console)


def demo_federate(
    out: Annotated[Path, typer.Option(help="Where the members' folders go.")] = Path("demo-out"),
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Set up the demo's run, data and members on a coordinator that is already running.

    This is what `docker compose up` does first; each member then runs in its own container.
    """
    from pubswap_client.demo.federation import federate

    with connect(url, token_file) as api:
        federation = federate(api, out, {})
    typer.echo(f"Run {federation.run} has begun; members in {out / 'members'}.")


def prepare_folder(out: Path) -> None:
    """Make `out`, replacing an earlier demo's results but never anything else.

    Raises InvalidSettings if the folder holds something that no demo wrote.
    """
    if out.exists() and any(out.iterdir()):
        if not (out / _MARK).exists():
            raise InvalidSettings(f"{out} is not empty and no demo's; choose another --out.")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()
