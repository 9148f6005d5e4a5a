"""The results as lines of a table, with their goals. Pure functions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.flops import ModelShape
from benchmarks.gpu.cards import card_of
from benchmarks.gpu.plan import MEASUREMENTS, PARTS, Measurement
from benchmarks.gpu.roof import RANK, tokens_per_second
from benchmarks.gpu.shapes import SHAPES

GB = 1e9
MFU = 0.5
ROOF = 0.5  # of the memory's tokens/s
STEP_SECONDS = {"H200": 9.0, "H100": 12.0}  # by the GPU's name, at 1,200 tokens on average
GAIN = 0.3  # in pass@1, over 48 steps: on a CPU it goes from 0.367 to 0.778
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One line; `met` is None if there is no goal or no figure."""

    part: str
    what: str
    value: str
    goal: str = ""
    met: bool | None = None


def lines(results: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of all parts, in order; those that were not run are marked."""
    for part in PARTS:
        if part not in results["parts"]:
            yield Line(part, "", f"not run: make gpu PART={part}")
        elif part == "tests":
            yield from _tests(results["parts"][part])
        else:
            machine = results["parts"][part].get("machine", {}).get("device", "")
            records = results["parts"][part]["measurements"]
            for measurement in MEASUREMENTS[part]:
                yield from _measurement(measurement, records.get(measurement.name, {}), machine)


def _tests(record: Figures) -> Iterator[Line]:
    outcomes = record["tests"]
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    value = f"{passed} of {len(outcomes)} passed"
    if "stopped" in record:
        value += f"; {record['stopped']}"
    yield Line("tests", "CUDA tests", value, "all", bool(outcomes) and passed == len(outcomes))
    for name, outcome in outcomes.items():
        if outcome != "passed":
            yield Line("tests", name, outcome)


def _measurement(measurement: Measurement, record: Figures, device: str) -> Iterator[Line]:
    part, name = measurement.part, measurement.name
    if "figures" not in record:
        if "failed" in record:
            yield Line(part, name, f"failed: {record['failed'].splitlines()[0][:160]}", met=False)
        else:
            yield Line(part, name, f"not run: {record.get('not_run', 'no time was left')}")
        return
    for line in _LINES[measurement.work](record["figures"], measurement, device):
        label = name if not line.what else f"{name}: {line.what}"
        yield Line(part, label, line.value, line.goal, line.met)


def _judged(value: str, goal: str, met: bool, measurement: Measurement) -> Line:
    """A line whose goal counts only if the measurement has one."""
    return Line("", "", value, goal, met) if measurement.goal else Line("", "", value)


def _update(figures: Figures, measurement: Measurement, _device: str) -> Iterator[Line]:
    mfu = figures["mfu"]
    speed = f"{figures['response_tokens_per_second']:,.0f} response tokens/s"
    if mfu is None:
        yield Line("", "", f"MFU unknown, {speed}")
    else:
        yield _judged(f"{mfu:.1%} MFU, {speed}", f"≥ {MFU:.0%} MFU", mfu >= MFU, measurement)
    peak, estimate = figures["peak_bytes"] / GB, figures["estimated_bytes"] / GB
    halved = figures["tokens_at_a_time_after"] < figures["tokens_at_a_time"]
    yield Line(
        "",
        "memory",
        f"{peak:.1f} GB at its peak, estimated {estimate:.1f}{', halved' if halved else ''}",
        "≤ estimate",
        peak <= estimate,
    )


def _exactness(figures: Figures, *_: Any) -> Iterator[Line]:
    packed, plain = figures["packed"], figures["plain"]
    for key, what in (("logprob_mean", "log-probabilities"), ("gradient", "LoRA gradients")):
        yield Line(
            "",
            what,
            f"off by {packed[key]:.2g}, rounding alone {plain[key]:.2g}",
            "≤ 2 of it",
            packed[key] <= 2 * plain[key] + 1e-6,
        )


def _peer(figures: Figures, *_: Any) -> Iterator[Line]:
    yield Line("", "", f"{figures['response_tokens_per_second']:,.0f} response tokens/s")


def _rollout(figures: Figures, measurement: Measurement, device: str) -> Iterator[Line]:
    speed, rows = figures["tokens_per_second"], figures["rows"]
    mean = figures["response_mean"]
    value = f"{speed:,.0f} tokens/s, {rows} rows, mean {mean:,.0f}"
    card = card_of(device)
    if card is None:
        yield Line("", "", value)
    else:
        shape = ModelShape.from_config(SHAPES[measurement.model], RANK)
        share = speed / tokens_per_second(shape, card.bandwidth, mean, rows=rows)
        value += f", {share:.0%} of the memory's roof"
        yield _judged(value, f"≥ {ROOF:.0%} of it", share >= ROOF, measurement)


def _vllm(figures: Figures, measurement: Measurement, device: str) -> Iterator[Line]:
    yield from _rollout(figures, measurement, device)
    apart, graphs = figures["mismatch"], figures["graphs"]
    value = f"off by {apart['mean']:.2g} nats a token, {apart['max']:.2g} at most"
    yield Line("", "log-probabilities", value)
    ready = f"ready in {figures['ready_seconds']:.0f} s"
    yield Line("", "start", ready if graphs is None else f"{ready}, CUDA graphs {graphs}")


def _evaluator(figures: Figures, *_: Any) -> Iterator[Line]:
    peak = figures["peak_bytes"]
    value = f"{figures['tokens_per_second']:,.0f} tokens/s, {figures['rows']} rows"
    if peak is None:
        yield Line("", "", value)
    else:
        yield Line("", "", f"{value}, {peak / GB:.0f} GB", "≤ 80 GB", peak <= 80 * GB)


def _step(figures: Figures, measurement: Measurement, device: str) -> Iterator[Line]:
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in figures["phases"].items())
    value = f"{figures['seconds']:.1f} s ({phases}), mean {figures['response_mean']:,.0f}"
    card = card_of(device)
    goal = STEP_SECONDS.get(card.name) if card else None
    if goal is None:
        yield Line("", "", value)
    else:
        yield _judged(value, f"≤ {goal:.0f} s", figures["seconds"] <= goal, measurement)


def _learning(figures: Figures, *_: Any) -> Iterator[Line]:
    curve = figures["pass_at_1"]
    value = (
        f"pass@1 {curve[0]:.3f} to {curve[-1]:.3f}, {figures['steps']} steps, "
        f"{figures['seconds']:.0f} s"
    )
    yield Line("", "", value, f"+ {GAIN}", curve[-1] - curve[0] >= GAIN)


_LINES = {
    "update": _update,
    "exactness": _exactness,
    "peer": _peer,
    "rollout": _rollout,
    "vllm": _vllm,
    "evaluator": _evaluator,
    "step": _step,
    "learning": _learning,
}
