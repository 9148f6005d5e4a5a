"""Carrying out orders: a single one in this process, more in processes of their own."""

import os
from collections.abc import Sequence
from functools import partial

from rich.console import Console

from pubswap_protocol.errors import InvalidSettings
from pubswap_simulation.display import Display
from pubswap_simulation.logs import LOG, log_to, open_log
from pubswap_simulation.order import Order
from pubswap_simulation.sweep import Sweep
from pubswap_simulation.tables import run_table, sweep_table


def run_orders(
    orders: Sequence[Order], console: Console, jobs: int | None, devices: str | None
) -> int:
    """Carry out all that is not done yet, and say what came of it; returns the exit status."""
    if len(orders) == 1 and devices is None:
        return _run_one(orders[0], console)
    names = devices.split(",") if devices else []
    count = jobs or len(names) or 1
    orders = [_with_threads(order, count) for order in orders]
    # libgomp reads it once, before torch is told how many threads there are.
    threads = {"OMP_NUM_THREADS": str(orders[0].options["threads"])}
    environments = [place | threads for place in places(count, names)]
    with Display(console, len(orders)) as display:
        sweep = Sweep(orders, environments, display)
        sweep.run()
    console.print(sweep_table(orders, sweep.failed))
    for key, reason in sweep.failed.items():
        console.print(f"[red]failed[/red] {key}: {reason}", soft_wrap=True)
    if sweep.failed:
        console.print("The same command tries these again, from where they were.")
    return 1 if sweep.failed else 0


def _run_one(order: Order, console: Console) -> int:
    console.print(f"run {order.folder}", soft_wrap=True, highlight=False)
    with (
        open_log(order.folder) as log,
        Display(console, 1) as display,
        order.verifiers() as verifiers,
    ):
        log_to(log)
        result = order.carry_out(partial(display.moved, order), verifiers)
    console.print(run_table(result))
    console.print(
        f"base {result.base:.3f}  final {result.final:.3f}  best {result.best:.3f}  "
        f"in {result.seconds:.0f} s, {result.seconds / order.job.steps:.2f} s a step; "
        f"log in {order.folder / LOG}",
        soft_wrap=True,
        highlight=False,
    )
    return 0


def places(count: int, devices: Sequence[str]) -> list[dict[str, str]]:
    """The environment of each process: its GPU is the only one that it sees."""
    found: list[dict[str, str]] = []
    for number in range(count):
        if not devices:
            found.append({})
            continue
        name = devices[number % len(devices)].strip()
        kind, _, index = name.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
            raise InvalidSettings(f"--devices {name}: give them as cuda:0,cuda:1.")
        found.append({"CUDA_VISIBLE_DEVICES": _visible(index) if kind == "cuda" else ""})
    return found


def _visible(index: str) -> str:
    """The GPU of this number among those that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not allowed or not index:
        return index or allowed or "0"
    names = allowed.split(",")
    if int(index) >= len(names):
        raise InvalidSettings(f"--devices cuda:{index}: CUDA_VISIBLE_DEVICES allows {allowed}.")
    return names[int(index)]


def _with_threads(order: Order, processes: int) -> Order:
    """With its share of the CPU's threads, unless it is said how many."""
    share = max(1, len(os.sched_getaffinity(0)) // processes)
    return order.model_copy(update={"options": {"threads": share, **order.options}})
