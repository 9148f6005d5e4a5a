"""`pubswap simulate` as a user runs it, on the small model and sums."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pubswap_client.demo.demos import MODEL
from pubswap_protocol.problems import write_problems
from pubswap_simulation.results import Result, read_results
from support.coordinator.processes import SETTINGS, sums
from support.forked import pubswap

CLIENTS = ("client-1", "client-2")


def write_recipe(folder: Path, more: str = "") -> Path:
    """Write the acceptance tests' run as a recipe, with two clients' private files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_problems(folder / "public.jsonl", sums(1, 12))
    write_problems(folder / "test.jsonl", sums(2, 12))
    for number, name in enumerate(CLIENTS):
        write_problems(folder / f"{name}.jsonl", sums(3 + number, 10))
    values = {
        "name": "acceptance",
        **SETTINGS,
        "local_steps": 4,
        "model.source": str(MODEL),
        "data.public": "public.jsonl",
        "data.test": "test.jsonl",
        "data.private": [f"{name}.jsonl" for name in CLIENTS],
    }
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in values.items()]
    path = folder / "recipe.toml"
    path.write_text("".join(lines) + more)
    return path


def adapter_of(store: Path) -> bytes:
    """The final adapter of a store's only run."""
    [path] = store.glob("runs/*/adapter-final/adapter_model.safetensors")
    return path.read_bytes()


def options_of(settings: Mapping[str, Any]) -> list[str]:
    """The command-line options for these settings."""
    texts = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [part for text in texts for part in ("--set", text)]


def command(recipe: Path, store: Path, *options: str) -> list[str]:
    """The command line, for one CPU thread."""
    machine = ["--device", "cpu", "--threads", "1"]
    return ["simulate", str(recipe), "--out", str(store), *machine, *options]


def simulated(
    recipe: Path, store: Path, *options: str, status: int = 0
) -> tuple[list[Result], str]:
    """All results in the store after the command, and what it printed."""
    done = pubswap(*command(recipe, store, *options))
    assert done.returncode == status, done.stdout + done.stderr
    return list(read_results(store)), done.stdout + done.stderr
