"""`make gpu` without a GPU: every measurement with tiny models, and what is said of the results."""

import ast
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.flops import ModelShape
from benchmarks.gpu import needed, parcels, roof, run
from benchmarks.gpu.cards import card_of
from benchmarks.gpu.goals import lines
from benchmarks.gpu.job import make
from benchmarks.gpu.plan import FIRST, MEASUREMENTS, PARTS, Measurement, batches
from benchmarks.gpu.shapes import SHAPES
from benchmarks.gpu.table import plain

ROOT = Path(__file__).parents[3]
EVERY = [one for part in MEASUREMENTS.values() for one in part]


def made(measurements: list[Measurement], folder: Path) -> dict[str, Any]:
    """The records of measurements, made in this process, by name."""
    found: list[dict[str, Any]] = []
    assert make(measurements, "cpu", True, folder / "models", folder, 300, found.append)
    return {record.pop("name"): record for record in found}


@pytest.mark.parametrize("part", MEASUREMENTS)
@pytest.mark.filterwarnings("ignore")
def test_every_measurement_runs_with_tiny_models(part: str, tmp_path: Path) -> None:
    """The very lines that a GPU will run: none fails, and each makes a line of the table."""
    # The other models, and TRL's trainers, are the whole command's.
    first = MEASUREMENTS[part][0].model
    measurements = [one for one in MEASUREMENTS[part] if one.model == first and one.work != "peer"]
    found = made(measurements, tmp_path)
    assert list(found) == [one.name for one in measurements]
    assert not {name: record["traceback"] for name, record in found.items() if "failed" in record}
    reasons = {name: record["not_run"] for name, record in found.items() if "not_run" in record}
    ours = {name: why for name, why in reasons.items() if why != "vllm is not installed"}
    assert all("by flash" in name or "by flex" in name for name in ours), ours
    json.dumps(found)
    shown = list(lines({"parts": {part: {"measurements": found}}}))
    values = {line.what: line.value for line in shown if line.part == part}
    assert all(any(what.startswith(name) for what in values) for name in found)


def test_a_measurement_that_fails_stops_no_other(tmp_path: Path) -> None:
    """Its error is in the results, and the next one is made."""
    wrong = Measurement("learning", "no such", "update", "no such model")
    found = made([wrong, *MEASUREMENTS["learning"]], tmp_path)
    assert "KeyError" in found["no such"]["failed"]
    assert "figures" in found["learning, one client"]


def test_a_process_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """What a child does not do in its time is not waited for."""
    started = time.monotonic()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert run.ended_within(command, 1.0, dict(os.environ)) is None
    assert time.monotonic() - started < 30
    assert run.ended_within([sys.executable, "-c", "raise SystemExit(3)"], 60, {}) == 3


def test_a_process_has_the_measurements_of_one_model() -> None:
    """In order and each once; a peer's trainer is alone in its process."""
    for part in MEASUREMENTS.values():
        found = batches(part)
        assert [one for batch in found for one in batch] == part
        for batch in found:
            assert len({one.model for one in batch}) == 1
            assert len(batch) == 1 or all(one.work != "peer" for one in batch)
    assert len({one.name for one in EVERY}) == len(EVERY)


def figures(**changes: Any) -> dict[str, Any]:
    return {
        "mfu": 0.51,
        "response_tokens_per_second": 20_000.0,
        "peak_bytes": 50e9,
        "estimated_bytes": 60e9,
        "tokens_at_a_time": 8192,
        "tokens_at_a_time_after": 8192,
    } | changes


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, [True, True]),
        ({"mfu": 0.49}, [False, True]),
        ({"peak_bytes": 61e9}, [True, False]),
        ({"mfu": None}, [None, True]),
    ],
)
def test_goals_are_held_against_figures(changes: dict[str, Any], verdicts: list[bool]) -> None:
    """50 % MFU, and no more memory than was estimated."""
    name = f"update, {FIRST}"
    parts = {"update": {"measurements": {name: {"figures": figures(**changes)}}}}
    shown = [line for line in lines({"parts": parts}) if line.what in (name, f"{name}: memory")]
    assert [line.met for line in shown] == verdicts


@pytest.mark.parametrize(
    ("name", "has_goal"),
    [(f"update, {FIRST}", True), (f"update, {FIRST}, by flex", False), ("update, Qwen3-4B", False)],
)
def test_goals_are_for_the_first_model_by_the_chosen_way(name: str, has_goal: bool) -> None:
    """Other models and ways are measured to be compared."""
    parts = {"update": {"measurements": {name: {"figures": figures()}}}}
    (shown,) = [line for line in lines({"parts": parts}) if line.what == name]
    assert bool(shown.goal) is has_goal
    assert (shown.met is True) is has_goal


def test_one_models_measurements_can_be_made_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others keep the same machine's records, or are named; learning has its own model."""
    made_: list[str] = []

    def make_none(batch: list[Measurement], *_: Any) -> list[dict[str, Any]]:
        made_.extend(one.name for one in batch)
        return [{"name": one.name, "figures": {}} for one in batch]

    monkeypatch.setattr(run, "_in_a_process", make_none)
    chosen = run.options(["--model", "Qwen3-4B", "--dry"])
    path, machine = tmp_path / "step.json", {"device": "a GPU"}
    name, kept = f"step, {FIRST}, by vllm", {"figures": {"seconds": 1.0}}
    path.write_text(json.dumps({"measurements": {name: kept}, "machine": machine}))
    for described, first in ((machine, kept), ({"device": "another"}, {})):
        made_.clear()
        records = {
            part: run.measured(part, chosen, tmp_path, {}, run.earlier(path, described))
            for part in ("step", "learning")
        }
        assert made_ == ["step, Qwen3-4B, by vllm", "learning, one client"]
        missing = {"not_run": "only Qwen3-4B was asked for"}
        assert records["step"]["measurements"][name] == (first or missing)
    assert run.earlier(tmp_path / "none.json", machine) == {}


def test_what_was_not_reached_is_named() -> None:
    """A part that was not run, a measurement without time, one that failed, one that cannot be."""
    first, second, third, *_ = MEASUREMENTS["rollout"]
    found = {
        first.name: {"failed": "OutOfMemoryError: too much\nmore"},
        second.name: {"not_run": "so"},
    }
    shown = {
        line.what or line.part: (line.value, line.met)
        for line in lines({"parts": {"rollout": {"measurements": found}}})
    }
    assert shown["tests"] == ("not run: make gpu PART=tests", None)
    assert shown[first.name] == ("failed: OutOfMemoryError: too much", False)
    assert shown[second.name] == ("not run: so", None)
    assert shown[third.name] == ("not run: no time was left", None)


def test_a_failed_test_is_named_and_misses_the_goal() -> None:
    """So does none at all."""
    outcomes = {"test_a.py::test_x": "passed", "test_a.py::test_y": "failed"}
    first, second, *_ = lines({"parts": {"tests": {"tests": outcomes}}})
    assert (first.value, first.met) == ("1 of 2 passed", False)
    assert (second.what, second.value) == ("test_a.py::test_y", "failed")
    empty, *_ = lines({"parts": {"tests": {"tests": {}, "stopped": "pytest ended with 4"}}})
    assert (empty.value, empty.met) == ("0 of 0 passed; pytest ended with 4", False)


def test_parts_that_ran_apart_are_merged(tmp_path: Path) -> None:
    """A part keeps its figures when another is run."""
    (tmp_path / "gpu").mkdir()
    for part in ("update", "tests"):
        (tmp_path / "gpu" / f"{part}.json").write_text(json.dumps({"machine": part}))
    assert run.merge(tmp_path) == json.loads((tmp_path / "gpu.json").read_bytes())
    assert list(run.merge(tmp_path)["parts"]) == ["tests", "update"]
    (tmp_path / "gpu" / "update.json").unlink()  # on another machine, which has gpu.json alone
    assert list(run.merge(tmp_path)["parts"]) == ["tests", "update"]


def test_a_dry_run_writes_elsewhere() -> None:
    """Its figures would stand among real ones."""
    assert run.options(["--dry"]).out != run.options([]).out == run.RESULTS
    assert run.options(["--part", "step"]).part == ["step"]
    assert run.options([]).part == list(PARTS)


def test_the_table_is_plain_text_where_rich_is_not_installed() -> None:
    """Columns as wide as what is in them."""
    assert plain("title", [("update", "x", "1", "", "")]).splitlines() == [
        "title",
        "part    what  measured  goal  verdict",
        "------  ----  --------  ----  -------",
        "update  x     1",
    ]


@pytest.mark.parametrize(
    ("wheel", "is_ours"),
    [
        ("blake3-1.0.11-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("blake3-1.0.11-cp311-cp311-manylinux_2_17_x86_64.whl", False),
        ("psutil-7.2.2-cp36-abi3-manylinux2010_x86_64.whl", True),
        ("thing-1-cp313-abi3-linux_x86_64.whl", False),
        ("httpx-0.28.1-py3-none-any.whl", True),
        ("six-1.17.0-py2.py3-none-any.whl", True),
        ("thing-1.0-1-py3-none-any.whl", True),
        ("multiprocess-0.70.19-py312-none-any.whl", True),
        ("multiprocess-0.70.19-py311-none-any.whl", False),
        ("notes.txt", False),
    ],
)
def test_wheels_are_taken_by_their_names(wheel: str, is_ours: bool) -> None:
    """Those that this Python can load."""
    assert needed.fits(wheel, (3, 12)) is is_ours


def wheel(folder: Path, name: str, size: int = 0) -> Path:
    """A wheel with one package, of random bytes."""
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name.partition('-')[0]}/bytes", os.urandom(size))
    return path


def test_wheels_are_unpacked_and_nothing_is_installed(tmp_path: Path) -> None:
    """Those of another Python are named."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no \*\.whl"):
        needed.unpack(wheels, tmp_path / "into")
    wheel(wheels, "thing-1.0-py3-none-any.whl")
    (wheels / "other-1.0-cp39-cp39-win32.whl").write_bytes(b"")
    assert needed.unpack(wheels, tmp_path / "into") == ["other-1.0-cp39-cp39-win32.whl"]
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["thing"]


SIZES = {"thing": 25_000, "small": 3_000}


def test_a_large_wheel_travels_in_pieces(tmp_path: Path) -> None:
    """Each parcel is small, and all of them together are the wheels again, in any order."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, size in SIZES.items():
        wheel(wheels, f"{name}-1.0-py3-none-any.whl", size)
    content = (wheels / "thing-1.0-py3-none-any.whl").read_bytes()
    assert parcels.divide(wheels, parcel=10_000) == 3
    folders = sorted(wheels.iterdir())
    assert [folder.name for folder in folders] == ["1", "2", "3"]
    for folder in folders:
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 10_000
    found, missing = parcels.whole(wheels, tmp_path)
    assert sorted(path.name.partition("-")[0] for path in found) == ["small", "thing"]
    assert not missing
    assert (tmp_path / "thing-1.0-py3-none-any.whl").read_bytes() == content
    assert needed.unpack(wheels, tmp_path / "into") == []
    sizes = {name: (tmp_path / "into" / name / "bytes").stat().st_size for name in SIZES}
    assert sizes == SIZES


def test_a_missing_piece_is_named_and_its_wheel_left_out(tmp_path: Path) -> None:
    """The others are unpacked."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "thing-1.0-py3-none-any.whl", size=25_000)
    assert parcels.divide(wheels, parcel=10_000) == 3
    next(wheels.rglob("*.2-of-3")).unlink()
    left_out = ["thing-1.0-py3-none-any.whl (without its pieces 2 of 3)"]
    assert needed.unpack(wheels, tmp_path / "into") == left_out
    assert not list((tmp_path / "into").iterdir())


def test_the_memorys_roof_is_bytes_over_bandwidth() -> None:
    """Counted by hand for Qwen3-1.7B: 1.75e9 weights with its LoRA, and 114,688 bytes a token."""
    shape = ModelShape.from_config(SHAPES[FIRST], 32)
    weights = 28 * (2048 * (2048 + 2 * 1024) + 2048 * 2048 + 3 * 2048 * 6144) + 2048 * 151936
    lora = 28 * 32 * ((2048 + 2048) * 2 + (2048 + 1024) * 2 + (2048 + 6144) * 3)
    step = 2 * (weights + lora) + 64 * (640 + 600) * 28 * 2 * 8 * 128 * 2
    assert roof.step_bytes(shape, rows=64, context=1240) == step
    assert roof.tokens_per_second(shape, 4.8e12, response=1200) == 64 * 4.8e12 / step
    h100, h200 = card_of("NVIDIA H100 80GB HBM3"), card_of("NVIDIA H200")
    assert h100 and h200
    speeds = [roof.tokens_per_second(shape, card.bandwidth, 1200) for card in (h100, h200)]
    assert [round(speed, -3) for speed in speeds] == [17_000, 24_000]
    assert card_of("NVIDIA GeForce GTX 970") is None
    card = card_of("NVIDIA GH200 480GB")
    assert card and card.name == "GH200"


@pytest.mark.parametrize(
    ("device", "seconds", "goal", "met"),
    [
        ("NVIDIA H200", 9.0, "≤ 9 s", True),
        ("NVIDIA H200", 9.1, "≤ 9 s", False),
        ("NVIDIA H100 80GB HBM3", 11.9, "≤ 12 s", True),
        ("NVIDIA A100-SXM4-80GB", 1.0, "", None),
    ],
)
def test_a_steps_goal_is_the_gpus(device: str, seconds: float, goal: str, met: bool | None) -> None:
    """A GPU without a goal has figures alone."""
    name = f"step, {FIRST}, by vllm"
    figures_ = {"seconds": seconds, "phases": {"rollout": seconds}, "response_mean": 1200.0}
    part = {"machine": {"device": device}, "measurements": {name: {"figures": figures_}}}
    (line,) = [line for line in lines({"parts": {"step": part}}) if line.what == name]
    assert (line.goal, line.met) == (goal, met)


@pytest.mark.parametrize(("speed", "met"), [(12_300.0, True), (12_100.0, False)])
def test_a_rollouts_goal_is_half_of_the_memorys_roof(speed: float, met: bool) -> None:
    """On an H200, for responses of 1,200 tokens, by vLLM as by our own engine."""
    figures_ = {"tokens_per_second": speed, "rows": 64, "response_mean": 1200.0}
    by_vllm = {"mismatch": {"mean": 0.01, "max": 0.2}, "graphs": "FULL", "ready_seconds": 40.0}
    for part in ("vllm", "rollout"):
        name = MEASUREMENTS[part][0].name
        record = {name: {"figures": figures_ | by_vllm}}
        results = {"machine": {"device": "NVIDIA H200"}, "measurements": record}
        (line,) = [one for one in lines({"parts": {part: results}}) if one.what == name]
        assert line.met is met


def test_what_is_missing_is_named_with_its_wheel() -> None:
    """And what only the machine can bring."""
    said = needed.advice(["dotenv", "torch"])
    assert "dotenv: carry the wheel python-dotenv" in said
    assert "torch: must be on the machine" in said
    assert "gpu-wheels" in said


OPTIONAL = {"liger_kernel", "rich", "trl", "math_verify", "reasoning_gym", "tensorboard", "vllm"}
OPTIONAL |= {"sympy"}  # only with math_verify, which needs it
OPTIONAL |= {"re2", "pyseccomp"}  # for patterns, and for processes that no measurement starts
OPTIONAL |= {"dp_accounting"}  # only with privacy.epsilon
OPTIONAL |= {"triton"}  # torch's own builds for CUDA bring it
"""Looked for, and done without."""


def test_all_that_is_imported_is_looked_for_beforehand() -> None:
    """Every third-party name in our own files that a measurement loads, and those of the tests."""
    files = _files_of("benchmarks.gpu.measures", "benchmarks.gpu.job")
    assert len(files) > 40
    files |= set((ROOT / "benchmarks" / "gpu").rglob("*.py"))
    names = {name.partition(".")[0] for file in files for name in _imported(file)}
    inside = {"benchmarks", "support", "workload", "trl_side", "trl_async_side"}
    known = {*needed.ON_THE_MACHINE, *needed.WHEELS, *OPTIONAL, *inside, *sys.stdlib_module_names}
    strange = {name for name in names if not name.startswith("pubswap_")} - known
    assert not strange


def _files_of(*modules: str) -> set[Path]:
    """Our own files of these modules, and of all that is imported anywhere in them."""
    found, left = set[Path](), list(modules)
    while left:
        name = left.pop()
        for top in ("protocol", "client", "."):
            path = (ROOT / top).joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.exists() and file not in found:
                    found.add(file)
                    left += _imported(file)
    return found


def _imported(file: Path) -> set[str]:
    """The modules that a file imports anywhere, the packages they are in, and names in them."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names]
    return {".".join(each[:end]) for each in parts for end in range(1, len(each) + 1)}


@pytest.mark.long
@pytest.mark.full
def test_the_whole_command_runs_in_a_copy_that_is_not_installed(tmp_path: Path) -> None:
    """`make gpu DRY=1` as it is typed: processes, tests and table, from a copied tree."""
    parts = ["tests", "learning"]  # the others differ in what they measure alone
    copy = tmp_path / "copy"
    for name in ("protocol", "client", "benchmarks"):
        # All but one of the CUDA tests run with the other tests alone.
        ignored = shutil.ignore_patterns(
            "__pycache__", "results", "test_packed.py", "test_rollout.py", "test_memory.py"
        )
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    shutil.copy(ROOT / "Makefile", copy)
    done = subprocess.run(
        ["make", "gpu", "DRY=1", f"PART={' '.join(parts)}", f"PYTHON={sys.executable}"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((copy / "gpu-dry" / "gpu.json").read_bytes())
    assert list(results["parts"]) == parts
    outcomes = results["parts"]["tests"]["tests"]
    assert outcomes
    assert set(outcomes.values()) <= {"passed", "skipped"}
    assert "failed" not in done.stdout
    assert not (copy / "benchmarks" / "results").exists()
