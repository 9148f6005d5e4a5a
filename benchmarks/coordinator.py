"""The coordinator's speed and memory, side by side with Flower, NVFlare, nginx, and a bare floor.

    python benchmarks/coordinator.py                          # everything, in 35 minutes
    python benchmarks/coordinator.py --only floor,heartbeats  # some parts
    python benchmarks/coordinator.py --quick                  # small sizes, saves nothing

Each part's figures are merged into results/coordinator.json as soon as they are measured. Our side
is always a real `pubswap serve` with its defaults, SQLite and a local folder (in one part a
bucket), so that every receipt is durable. Clients are processes of their own, on the same machine
and cores as the server.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from coordination import (
    aggregation,
    bucket,
    exchange,
    heartbeats,
    memory,
    polls,
    results,
    rounds,
    scale,
    transfers,
)
from rich.console import Console

AGAINST = ("floor", "nvflare", "flower")
PARTS = {
    "memory": memory,
    "transfers": transfers,
    "aggregation": aggregation,
    "heartbeats": heartbeats,
    "exchange": exchange,
    "polls": polls,
    "scale": scale,
    "bucket": bucket,
}
ALL = (*AGAINST, *PARTS)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_parts, default=ALL, help=f"Some of {','.join(ALL)}.")
    parser.add_argument("--sizes", type=_sizes, help="Sizes of the rounds, such as 4x35,4x140.")
    parser.add_argument("--quick", action="store_true", help="Small sizes; prints, saves nothing.")
    parser.add_argument("--scratch", type=Path, help="Folder for the adapters, on a real disk.")
    parser.add_argument("--out", type=Path, help=f"{results.PATH.name} unless --quick.")
    chosen = parser.parse_args()
    if chosen.out is None and not chosen.quick:
        chosen.out = results.PATH
    return chosen


def _parts(text: str) -> tuple[str, ...]:
    requested = tuple(text.split(","))
    if unknown := set(requested) - set(ALL):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: the parts are {', '.join(ALL)}")
    return requested


def _sizes(text: str) -> tuple[rounds.Size, ...]:
    by_label = {f"{size.clients}x{size.megabytes:g}": size for size in rounds.SIZES}
    if unknown := set(text.split(",")) - set(by_label):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(by_label)}")
    return tuple(by_label[name] for name in text.split(","))


def run(chosen: argparse.Namespace, scratch: Path, console: Console) -> dict[str, Any]:
    """Measure the chosen parts, and save each as soon as it is measured."""
    saved = results.Results(chosen.out)

    def tell(what: str) -> None:
        console.log(what)

    for name, part in PARTS.items():
        if name in chosen.only:
            console.rule(name)
            saved.add(name, part.measure(chosen.quick, scratch, tell))
    against = set(chosen.only) & set(AGAINST)
    if against:
        console.rule("rounds")
        sizes = chosen.sizes or (rounds.QUICK_SIZES if chosen.quick else rounds.SIZES)
        for name, size, entry in rounds.measure(sizes, against, scratch, tell):
            saved.add_round(name, size, entry)
    return saved.values


def main() -> None:
    """Measure, save, print the table."""
    chosen = options()
    console = Console()
    # Exit in order on SIGTERM, so that all child processes are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    # Child processes must find these modules too.
    folder = str(Path(__file__).parent)
    sys.path.append(str(Path(__file__).parents[1] / "tests"))  # for `support`
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="pubswap-bench-", dir=chosen.scratch) as scratch:
        result = run(chosen, Path(scratch), console)
    results.show(console, result)


if __name__ == "__main__":
    main()
