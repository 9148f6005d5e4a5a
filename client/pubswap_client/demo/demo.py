"""Run the demo, from an empty folder to its results."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from pubswap_client.coordinator.client import CoordinatorClient, wait_until_ready
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.demo.demos import Demo
from pubswap_client.demo.federation import EVALUATOR, PRIVATE_FILE, federate
from pubswap_client.demo.judging import judge_models, print_judged
from pubswap_client.demo.processes import Processes, free_port
from pubswap_client.demo.report import plot_curve, print_report, summarise
from pubswap_client.demo.watch import watch_run
from pubswap_client.operator.connecting import operator_token
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.tensors.peft_folder import write_peft_folder

READY_SECONDS = 60.0
_MARK = ".pubswap-demo"


def run_demo(demo: Demo, out: Path, overrides: Mapping[str, Any], console: Console) -> None:
    base = demo.base()
    started = time.monotonic()
    url = f"http://127.0.0.1:{free_port()}"
    with Processes(out / "logs") as processes:
        token = _serve(processes, url, out / "coordinator")
        with CoordinatorClient(url, token, Backoff(tries=5)) as api:
            run, clients = federate(api, demo, out, overrides)
            start_members(processes, demo, out / "members", clients)
            console.print(f"coordinator {url}, {len(clients)} clients, 1 evaluator")
            console.print(f"logs in {out / 'logs'}")
            view = watch_run(api, run, console, processes.check)
            adapter = api.global_adapter(run, "final")
    summary = summarise(view, time.monotonic() - started)
    print_report(view, summary, console)
    text = json.dumps(asdict(summary), indent=2)
    (out / "summary.json").write_text(text + "\n", encoding="utf-8")
    plot_curve(summary, out / "curve.png")
    write_peft_folder(out / "adapter", adapter, view.settings.lora, view.model, str(base))
    if demo.judged:
        print_judged(judge_models(base, out, view.settings), console)
    console.print(f"wrote {out}/summary.json, {out}/curve.png and the PEFT folder {out}/adapter")


def _serve(processes: Processes, url: str, data_dir: Path) -> str:
    """Start the coordinator; returns the operator token once it answers."""
    port = url.rsplit(":", 1)[-1]
    processes.start("coordinator", ["serve", "--port", port, "--data-dir", str(data_dir)])
    with CoordinatorClient(url, backoff=Backoff(tries=1)) as probe:
        wait_until_ready(probe, READY_SECONDS, processes.check)
    return operator_token(data_dir / "operator-token")


def start_members(processes: Processes, demo: Demo, members: Path, clients: Sequence[str]) -> None:
    """Start the daemons of the clients and the evaluator, with one thread each."""
    for name in (*clients, EVALUATOR):
        command = ["evaluate"] if name == EVALUATOR else ["client", "start"]
        options = ["--state", str(members / name), "--model", str(demo.base()), "--threads", "1"]
        options += ["--dtype", demo.dtype()]
        options += ["--engine", "transformers"]  # no GPU for a vLLM in each process
        if name != EVALUATOR:
            options += ["--data", str(members / name / PRIVATE_FILE)]
        # With more threads, the processes' spinning OpenMP threads slow each other many times over.
        processes.start(name, [*command, *options], {"OMP_NUM_THREADS": "1"})


def prepare_folder(out: Path) -> None:
    """Make `out`, replacing an earlier demo's results but never anything else.

    Raises InvalidSettings if the folder holds something that no demo wrote.
    """
    if out.exists() and any(out.iterdir()):
        if not (out / _MARK).exists():
            raise InvalidSettings(f"{out} is not empty and not a demo's; choose another --out.")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()
