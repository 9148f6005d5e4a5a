"""Figures in the documents against the files that the benchmarks write."""

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.flops import ModelShape
from benchmarks.gpu.cards import CARDS
from benchmarks.gpu.goals import lines
from benchmarks.gpu.plan import FIRST
from benchmarks.gpu.roof import RANK, tokens_per_second
from benchmarks.gpu.shapes import SHAPES

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
SPEED = PAGE.replace("\u00d7", "x").replace("\u2013", "-").splitlines()


def read(name: str) -> dict[str, Any]:
    """A benchmark's results."""
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_bytes())
    return results


def said(value: float, form: str, met: bool | None = True) -> str:
    """A figure as the page has it: in bold where its goal is missed."""
    text = form.format(value)
    return text if met else f"**{text}**"


def rounds(peers: dict[str, Any]) -> list[str]:
    """The rows of the rounds' table."""
    rows = []
    for size, nvflare in peers["nvflare"].items():
        floor, flower = peers["floor"][size], peers["flower"][size]["flower"]
        least = "≥ " if flower["is_lower_bound"] else ""
        rows.append(
            f"| {size} | {nvflare['ours_seconds']:.2f} s "
            f"| {median(floor['floor']['seconds']):.2f} s | {floor['hashing_seconds']:.2f} s "
            f"| {nvflare['nvflare']['seconds']:.1f} s | {least}{flower['seconds']:.0f} s |"
        )
    return rows


def coordinator(found: dict[str, Any]) -> list[str]:
    """The rows of what is measured and wanted of the coordinator."""
    details = found["details"]
    memory = details["memory"]
    small, large = (memory[size]["peak_mb"] for size in ("4 x 140 MB", "64 x 35 MB"))
    few, many = found["exchange_seconds"]["4"], found["exchange_seconds"]["64"]
    bucket = details["bucket"]
    flower, nvflare = found["round_vs_flower"], found["round_vs_nvflare"]
    heartbeat, ratio = found["slowest_heartbeat_seconds"], found["bucket_cpu_ratio"]
    return [
        "| round, against Flower / NVFlare, at the worst size "
        f"| {said(flower, '{:.0f}x', flower >= 30)} / {said(nvflare, '{:.1f}x', nvflare >= 2.5)} "
        "| ≥ 30 / ≥ 2.5 |",
        "| server's anonymous memory, 4 x 140 MB / 64 x 35 MB "
        f"| {said(small, '{:.0f}', small <= 150)} / {said(large, '{:.0f}', large <= 150)} MB "
        "| ≤ 150 |",
        "| upload of 140 MB against curl and nginx, which neither hashes nor syncs "
        f"| {said(v := found['upload_vs_nginx'], '{:.2f}x', v >= 0.45)} | ≥ 0.45 |",
        "| download of 140 MB, to checked bytes in memory, against curl to a file "
        f"| {said(v := found['download_vs_nginx'], '{:.1f}x', v >= 0.5)} | ≥ 0.5 |",
        "| slowest heartbeat while 16 clients upload "
        f"| {said(heartbeat, '{:.1f} s', heartbeat <= 1)} | ≤ 1 |",
        "| exchange of 4 / 64 clients x 64 responses x 2,048 tokens "
        f"| {said(few, '{:.2f}', few <= 0.25)} / {said(many, '{:.2f}', many <= 2)} s "
        "| ≤ 0.25 / ≤ 2 |",
        "| 1,000 long polls, the last answer "
        f"| {said(v := found['long_poll_seconds'], '{:.2f} s', v <= 1)} | ≤ 1 |",
        f"| CPU of the coordinator, a round of {bucket['round']} with a bucket: "
        "bytes through it / straight to the bucket "
        f"| {bucket['through']['cpu_seconds']:.1f} / {bucket['direct']['cpu_seconds']:.1f} s: "
        f"{said(ratio, '{:.1f}x', ratio >= 3)} | ≥ 3 |",
    ]


def test_the_coordinator_s_figures_are_those_that_were_measured() -> None:
    """Also which goals are missed, and the README's range."""
    found = read("coordinator")
    peers = found["details"]["rounds"]
    for row in rounds(peers) + coordinator(found):
        assert row in SPEED, row
    ratios = [nvflare["ratio"] for nvflare in peers["nvflare"].values()]
    said_there = f"runs at {min(ratios):.1f} to {max(ratios):.1f} times the speed of NVFlare's"
    assert said_there in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_grpo_step_s_ratios_are_those_that_were_measured() -> None:
    """In bold where a goal is missed; the README has the whole step's."""
    found = read("grpo")
    lines = {
        "update, ragged, real tokens/s": ("update_ragged_vs_trl", 8),
        "the same, TRL's output layer kept": ("update_ragged_vs_trl_valid_positions", 0),
        "the same, TRL's `AsyncGRPOTrainer`": ("update_ragged_vs_trl_async", 0),
        "update, uniform": ("update_uniform_vs_trl", 0),
        "rollout, ragged": ("rollout_ragged_vs_trl", 0),
        "whole step, ragged": ("step_ragged_vs_trl", 5.5),
    }
    for start, (key, goal) in lines.items():
        [row] = [line for line in SPEED if line.startswith(f"| {start}")]
        assert row.endswith(f"| {said(found[key], '{:.1f}', found[key] >= goal)} |"), key
    memory = said(found["memory_vs_trl"], "{:.2f}", found["memory_vs_trl"] <= 0.1)
    [row] = [line for line in SPEED if line.startswith("| peak memory of an update")]
    assert row.endswith(f"| {memory} |")
    step = f"a GRPO step runs at {found['step_ragged_vs_trl']:.1f} times the speed of TRL's"
    assert step in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_gpu_s_figures_are_those_that_were_measured() -> None:
    """In bold where `make gpu` says that a goal is missed; the README has the ratio to TRL's."""
    results = read("gpu")
    parts, met = results["parts"], {line.what: line.met for line in lines(results)}
    assert {part["machine"]["device"] for part in parts.values()} == {"NVIDIA H200"}
    assert set(parts["tests"]["tests"].values()) == {"passed"}
    assert f"All {len(parts['tests']['tests'])} CUDA" in PAGE
    sampled, whole = f"rollout, {FIRST}, mean 1,200", f"step, {FIRST}, by transformers"
    update, rollout, step, evaluator, trl, learning = (
        parts[part]["measurements"][name]["figures"]
        for part, name in (
            ("update", f"update, {FIRST}"),
            ("rollout", sampled),
            ("step", whole),
            ("rollout", f"evaluator, {FIRST}, 512 rows"),
            ("update", f"GRPOTrainer, {FIRST}"),
            ("learning", "learning, one client"),
        )
    )
    mfu, memory = update["mfu"], evaluator["peak_bytes"] / 1e9
    ours, theirs = (side["response_tokens_per_second"] for side in (update, trl))
    first, *_, last = learning["pass_at_1"]
    shape = ModelShape.from_config(SHAPES[FIRST], RANK)
    at = {card.name: partial(tokens_per_second, shape, card.bandwidth) for card in CARDS}
    roofs = {name: round(roof(1200), -2) for name, roof in at.items()}
    speed = rollout["tokens_per_second"]
    share = 100 * speed / at["H200"](rollout["response_mean"])
    for text in (
        f"| {said(100 * mfu, '{:.1f} % MFU', met[f'update, {FIRST}'])} |",
        f"| {said(share, '{:.0f} %', met[sampled])}: {speed:,.0f} tokens/s |",
        f"| {said(step['seconds'], '{:.1f} s', met[whole])} at {step['response_mean']:,.0f} |",
        f"| {said(memory, '{:.0f} GB', memory <= 80)} |",
        f"{roofs['H200']:,.0f} tokens/s on an H200, {roofs['H100']:,.0f} on an H100",
        f"| {first:.3f} to {last:.3f} |",
        f"reaches {100 * update['flops_vs_matmul']:.0f} % of the speed of a large matrix product",
        f"cut at {evaluator['cut']}",
        f"at {theirs:,.0f} response tokens/s. Ours runs at {ours:,.0f}: {ours / theirs:.1f} times",
    ):
        assert text in PAGE.replace("\n  ", " "), text
    ratio = f"an update of {FIRST} runs at {ours / theirs:.1f} times the speed of TRL's"
    assert ratio in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_members_figures_are_those_that_were_measured() -> None:
    """Rounds of 1,000 members, on one process and on two."""
    for coordinator, found in read("scale")["details"].items():
        row = found["1000"]
        line = (
            f"| {coordinator} | 1,000 | {row['cpu_seconds']:.0f} | {row['seconds']:.0f} "
            f"| {row['peak_mb']:.0f} MB | {row['slowest_heartbeat_seconds']:.2f} s "
            f"| {row['longest_block_seconds']:.2f} s |"
        )
        assert line in SPEED, line


def test_the_sampling_check_s_figures_are_those_that_were_measured() -> None:
    """Every attack's, the honest ones', and what the check costs."""
    page = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    found = read("sampling")
    names = {"replayed": "replayed from another step"}
    for name, figures in found["attacks"].items():
        assert f"\n| {names.get(name, name)} | {figures['detected']:.3f} |\n" in page, name
        assert figures["auc_pooled"] >= 0.99
    assert f"\n| honest | {found['false_alarm_rate']:.5f} |\n" in page
    assert found["false_alarm_rate"] <= 1e-3
    cost = f"takes {100 * found['cost_share']:.1f} % of the update's CPU time"
    assert cost in page.replace("\n", " ")


def test_the_table_of_faults_is_what_chaos_wrote() -> None:
    """As often tried, and as much lost."""
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = Counter(re.findall(r"\| ([\d,]+ \| \d+) \|$", page, re.MULTILINE))
    found = json.loads((ROOT / "tests" / "chaos" / "results.json").read_bytes())
    faults = [one for one in found.values() if isinstance(one, dict) and "tried" in one]
    assert len(faults) > 15
    assert rows == Counter(f"{one['tried']:,} | {one['lost']}" for one in faults)
