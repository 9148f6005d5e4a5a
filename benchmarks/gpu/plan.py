"""The measurements of `make gpu`, part by part and in this order: the most informative first.

This is pure data, so that measurements that were not reached can be listed.
"""

from dataclasses import dataclass, field
from typing import Any

MODELS = ("Qwen3-1.7B", "Qwen2.5-Math-1.5B", "Llama-3.2-3B", "Qwen3-4B")
FIRST = MODELS[0]
KINDS = MODELS[:3]  # one of each architecture; tiny models differ in nothing else
ATTENTION = ("flash", "flex", "portable", "padded")
DEMO = "the demo's model"


@dataclass(frozen=True)
class Measurement:
    """One line of the results: `work` names a function of `measures`, called with the options."""

    part: str
    name: str
    work: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)


def _update(model: str, what: str = "", **options: Any) -> Measurement:
    name = f"update, {model}{', ' if what else ''}{what}"
    return Measurement("update", name, "update", model, options)


def _exactness(model: str) -> Measurement:
    return Measurement("update", f"exactness, {model}", "exactness", model)


def _peer(trainer: str) -> Measurement:
    return Measurement("update", f"{trainer}, {FIRST}", "peer", FIRST, {"trainer": trainer})


def _rollout(model: str, what: str, **options: Any) -> Measurement:
    return Measurement("rollout", f"rollout, {model}, {what}", "rollout", model, options)


MEASUREMENTS: dict[str, list[Measurement]] = {
    "update": [
        _update(FIRST),
        _exactness(FIRST),
        *(m for model in MODELS[1:] for m in (_update(model), _exactness(model))),
        *(_update(FIRST, f"by {path}", attention=path) for path in ATTENTION),
        _update(FIRST, "layers recomputed", checkpointing=True),
        # Last: each starts a process, only to say that TRL is missing on most machines.
        _peer("GRPOTrainer"),
        _peer("AsyncGRPOTrainer"),
    ],
    "rollout": [
        _rollout(FIRST, "mean 1,200"),
        _rollout(FIRST, "all 2,048", full=True),
        Measurement("rollout", f"evaluator, {FIRST}, 512 rows", "evaluator", FIRST),
        *(_rollout(model, "mean 1,200") for model in MODELS[1:]),
        _rollout(FIRST, "without CUDA graphs", graphs=False),
        _rollout(FIRST, "unmerged, plain decoding", merge=False, static=False),
    ],
    "step": [
        Measurement("step", f"step, {model}", "step", model)
        for model in (FIRST, MODELS[3], MODELS[1], MODELS[2])
    ],
    "learning": [Measurement("learning", "learning, one client", "learning", DEMO)],
}

PARTS = ("tests", *MEASUREMENTS)


def batches(measurements: list[Measurement]) -> list[list[Measurement]]:
    """Batches that share a process: neighbours of the same model. Each peer has its own process."""
    grouped: list[list[Measurement]] = []
    for measurement in measurements:
        last = grouped[-1][-1] if grouped else None
        alone = measurement.work == "peer" or (last is not None and last.work == "peer")
        if last is None or alone or last.model != measurement.model:
            grouped.append([])
        grouped[-1].append(measurement)
    return grouped
