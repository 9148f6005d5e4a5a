"""The figures as a table, and as JSON with the raw data."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("torch", "transformers", "peft", "trl", "accelerate", "numpy")


def environment(device_name: str, threads: int) -> dict[str, Any]:
    """The software and device that the figures were measured with."""
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "device": device_name,
        "threads": threads,
    }


def show(console: Console, result: dict[str, Any]) -> None:
    """Print a line for each measured figure."""
    table = Table(title="PubSwap against TRL, medians")
    for column in ("", "PubSwap", "TRL", "ratio"):
        table.add_column(column, justify="left" if column == "" else "right")
    for name, line in result["lines"].items():
        table.add_row(name, line["ours"], line["trl"], f"{line['ratio']:.2f}")
    console.print(table)
    if "flops_vs_matmul" in result:
        console.print(
            f"Our ragged update runs at {result['flops_vs_matmul']:.1%} of a large matrix "
            f"product's FLOP/s."
        )


def throughput_line(pubswap: float, trl: float, tokens: int) -> dict[str, Any]:
    """Real tokens per second from two times; a ratio above 1 means that we are faster."""
    return {
        "ours": f"{tokens / pubswap:,.0f} tok/s",
        "trl": f"{tokens / trl:,.0f} tok/s",
        "ratio": trl / pubswap,
    }


def memory_line(pubswap: dict[str, int], trl: dict[str, int]) -> dict[str, Any]:
    """Growth above what is loaded; a ratio below 1 means that we need less."""
    return {
        "ours": f"{pubswap['growth'] / 2**20:,.0f} MiB",
        "trl": f"{trl['growth'] / 2**20:,.0f} MiB",
        "ratio": pubswap["growth"] / trl["growth"],
    }


def write(result: dict[str, Any], path: Path) -> None:
    """Write the figures first, then the raw data."""
    figures = {name: round(value, 4) for name, value in result.items() if type(value) is float}
    rest = {name: value for name, value in result.items() if name not in figures}
    rest.pop("lines")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures | rest, indent=2) + "\n")
