"""`make gpu`: every CUDA test and a benchmark, on a machine with one NVIDIA GPU and no network.

    make gpu                       # all parts, each in at most 9 minutes
    make gpu PART=update           # one: tests, update, vllm, rollout, step, learning
    make gpu MODEL=Qwen3-1.7B      # only this model; the others keep their figures
    make gpu WHEELS=gpu-wheels     # what this Python lacks, from `make gpu-wheels`
    make gpu DRY=1                 # the same on a CPU with tiny models, in a folder of its own

It uses the machine's Python, and installs and downloads nothing: models have real shapes and random
weights, made on the GPU. Each part writes its own JSON file, and all existing ones are merged. A
failed measurement does not stop the others, and none outlives its part's time.

This file imports the standard library only, so that it can report what is missing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
SOURCES = [ROOT, ROOT / "protocol", ROOT / "client"]
RESULTS = ROOT / "benchmarks" / "results"
sys.path[:0] = [str(folder) for folder in SOURCES]

from benchmarks.gpu import needed  # noqa: E402
from benchmarks.gpu.goals import lines  # noqa: E402
from benchmarks.gpu.plan import DEMO, MEASUREMENTS, MODELS, PARTS, REAL, Measurement, batches  # noqa: E402
from benchmarks.gpu.table import show  # noqa: E402

SECONDS = 520  # for a part, so that it ends within 9 minutes


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--model", choices=(*MODELS, REAL), help="Measure only this model.")
    parser.add_argument("--dry", action="store_true", help="On a CPU, with tiny models.")
    parser.add_argument("--wheels", type=Path, help="A folder of wheels that this Python lacks.")
    parser.add_argument("--out", type=Path, help="A folder for gpu.json and the parts' files.")
    parser.add_argument(
        "--models",
        type=Path,
        default=Path(tempfile.gettempdir()) / "pubswap-gpu-models",
        help="Folder of the generated models, 21 GB, which later parts reuse.",
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="Time for each part.")
    chosen = parser.parse_args(arguments)
    # A dry run's figures mean nothing, so they must not replace real ones.
    chosen.out = chosen.out or (ROOT / "gpu-dry" if chosen.dry else RESULTS)
    return chosen


def environment(wheels: Path | None) -> dict[str, str]:
    """The environment of measuring processes: our sources on the path, unpacked wheels first."""
    path = [
        *([str(wheels)] if wheels else []),
        *map(str, SOURCES),
        os.environ.get("PYTHONPATH", ""),
    ]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def measured(
    part: str,
    chosen: argparse.Namespace,
    scratch: Path,
    variables: dict[str, str],
    earlier: Mapping[str, Any],
) -> dict[str, Any]:
    """A part's records by name; its measurements run in processes, one for each model.

    Models that were not asked for keep their `earlier` records.
    """
    until = time.monotonic() + chosen.seconds
    wanted = [m for m in MEASUREMENTS[part] if chosen.model in (None, m.model) or m.model == DEMO]
    missing = {"not_run": f"only {chosen.model} was asked for"}
    by_name: dict[str, Any] = {
        one.name: earlier.get(one.name, missing) for one in MEASUREMENTS[part] if one not in wanted
    }
    # Tiny models take less time than starting a process.
    together = [wanted] if chosen.dry else batches(wanted)
    for batch in together:
        rest = batch
        while rest and until - time.monotonic() > 5:
            seconds = until - time.monotonic()
            new = _in_a_process(rest, chosen, scratch, seconds, variables)
            for record in new:
                by_name[record.pop("name")] = record
            if not new:  # it ended, or was killed, before it recorded anything
                break
            rest = [one for one in rest if one.name not in by_name]
    return {"measurements": by_name}


def _in_a_process(
    batch: Sequence[Measurement],
    chosen: argparse.Namespace,
    scratch: Path,
    seconds: float,
    variables: dict[str, str],
) -> list[dict[str, Any]]:
    """The records of job.py, run for at most `seconds`."""
    work, record = scratch / "work.json", scratch / "record.jsonl"
    record.unlink(missing_ok=True)
    order = {
        "measurements": [asdict(one) for one in batch],
        "device": "cpu" if chosen.dry else "cuda",
        "tiny": chosen.dry,
        "models": str(chosen.models),
        "scratch": str(scratch),
        "seconds": seconds - 5,
    }
    work.write_text(json.dumps(order))
    command = [sys.executable, "-m", "benchmarks.gpu.job", str(work), str(record)]
    code = ended_within(command, seconds, variables)
    lines_ = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    records = [json.loads(line) for line in lines_]
    if code not in (0, 3):
        why = "its time was over" if code is None else f"its process ended with {code}"
        reached = {one["name"] for one in records}
        broken = next((one.name for one in batch if one.name not in reached), None)
        if broken is not None:
            records.append({"name": broken, "failed": why})
    return records


def ended_within(command: Sequence[str], seconds: float, variables: dict[str, str]) -> int | None:
    """Run a command; returns its exit code, or None if it had to be killed."""
    with subprocess.Popen(command, env=variables, cwd=ROOT) as process:
        try:
            return process.wait(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            return None


def tested(chosen: argparse.Namespace, scratch: Path, variables: dict[str, str]) -> dict[str, Any]:
    """Run the CUDA tests; returns each one's outcome by name."""
    record = scratch / "tests.jsonl"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-c", str(FOLDER / "cuda.ini")),
        *("--rootdir", str(FOLDER), str(FOLDER / "cuda")),
    ]
    # The machine's plugins may not fit the pytest among our wheels.
    of_pytest = {"GPU_TESTS_RECORD": str(record), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    code = ended_within(command, chosen.seconds, variables | of_pytest)
    outcome: dict[str, Any] = {"tests": {}}
    if record.exists():
        for line in record.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            outcome["tests"][entry["name"]] = entry["outcome"]
            outcome["seconds"] = outcome.get("seconds", 0.0) + entry["seconds"]
    if code not in (0, 1):
        outcome["stopped"] = "its time was over" if code is None else f"pytest ended with {code}"
    return outcome


def earlier(path: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    """A part's records by name from an earlier run, if the same machine made them."""
    if not path.exists():
        return {}
    found = json.loads(path.read_bytes())
    records: dict[str, Any] = found["measurements"] if found["machine"] == described else {}
    return records


def merge(folder: Path) -> dict[str, Any]:
    """Merge all parts' files of a folder into gpu.json, which keeps parts without a file."""
    merged = folder / "gpu.json"
    parts = json.loads(merged.read_bytes())["parts"] if merged.exists() else {}
    for part in PARTS:
        path = folder / "gpu" / f"{part}.json"
        if path.exists():
            parts[part] = json.loads(path.read_bytes())
    results = {"parts": {part: parts[part] for part in PARTS if part in parts}}
    merged.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return results


def machine(device: str, variables: dict[str, str]) -> dict[str, Any] | None:
    """The output of machine.py, or None if it failed and printed why."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine", device]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        return None
    described: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return described


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts; returns the exit status."""
    chosen = options(arguments)
    with tempfile.TemporaryDirectory(prefix="pubswap-gpu-") as scratch_name:
        scratch = Path(scratch_name)
        wheels = None
        if chosen.wheels is not None:
            wheels = scratch / "wheels"
            others = needed.unpack(chosen.wheels, wheels)
            sys.path.insert(0, str(wheels))
            if others:
                _say(f"Skipped wheels, for another Python or not whole: {', '.join(others)}")
        if absent := needed.missing():
            _say(needed.advice(absent))
            return 2
        variables = environment(wheels)
        described = machine("cpu" if chosen.dry else "cuda", variables)
        if described is None:
            return 2
        if chosen.dry:
            chosen.models = scratch / "models"
        (chosen.out / "gpu").mkdir(parents=True, exist_ok=True)
        for part in chosen.part:
            _say(f"{part}: at most {chosen.seconds / 60:.0f} minutes on {described['device']}")
            started, path = time.monotonic(), chosen.out / "gpu" / f"{part}.json"
            if part == "tests":
                result = tested(chosen, scratch, variables)
            else:
                result = measured(part, chosen, scratch, variables, earlier(path, described))
            result |= {"machine": described, "wall_seconds": time.monotonic() - started}
            path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    results = merge(chosen.out)
    show(f"PubSwap on {described['device']}", list(lines(results)))
    _say(f"{chosen.out / 'gpu.json'}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
