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
REAL = "SmolLM2-135M"  # with its real weights


@dataclass(frozen=True)
class Measurement:
    """One line of the results: `work` names a function of `measures`, called with the options.

    Lines with a `goal` are judged; others are there to be compared.
    """

    part: str
    name: str
    work: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    goal: bool = False


def _update(model: str, what: str = "", goal: bool = False, **options: Any) -> Measurement:
    name = f"update, {model}{', ' if what else ''}{what}"
    return Measurement("update", name, "update", model, options, goal)


def _exactness(model: str) -> Measurement:
    return Measurement("update", f"exactness, {model}", "exactness", model)


def _peer(trainer: str, liger: bool = False) -> Measurement:
    name = f"{trainer}{' with liger-kernel' if liger else ''}, {FIRST}"
    return Measurement("update", name, "peer", FIRST, {"trainer": trainer, "liger": liger})


def _rollout(model: str, what: str, goal: bool = False, **options: Any) -> Measurement:
    return Measurement("rollout", f"rollout, {model}, {what}", "rollout", model, options, goal)


def _vllm(model: str, what: str, goal: bool = False, **options: Any) -> Measurement:
    return Measurement("vllm", f"rollout by vllm, {model}, {what}", "vllm", model, options, goal)


def _step(model: str, engine: str = "transformers") -> Measurement:
    name, options = f"step, {model}, by {engine}", {"engine": engine}
    return Measurement("step", name, "step", model, options, goal=model == FIRST)


MEASUREMENTS: dict[str, list[Measurement]] = {
    "update": [
        _update(FIRST, goal=True),
        _exactness(FIRST),
        _exactness(REAL),
        *(m for model in MODELS[1:] for m in (_update(model), _exactness(model))),
        *(_update(FIRST, f"by {path}", attention=path) for path in ATTENTION),
        _update(FIRST, "layers recomputed", checkpointing=True),
        # Last: each starts a process, only to say that TRL is missing on most machines.
        _peer("GRPOTrainer"),
        _peer("GRPOTrainer", liger=True),
        _peer("AsyncGRPOTrainer"),
    ],
    "vllm": [
        _vllm(FIRST, "mean 1,200", goal=True),
        _vllm(FIRST, "all 2,048", full=True),
        _vllm(FIRST, "asleep between rollouts", sleep=True),
        _vllm(FIRST, "without CUDA graphs", extra={"enforce_eager": True}),
        _vllm(FIRST, "as a server", engine="vllm-server"),
        _vllm(REAL, "mean 1,200"),
        *(_vllm(model, "mean 1,200") for model in MODELS[1:]),
    ],
    "rollout": [
        _rollout(FIRST, "mean 1,200", goal=True),
        _rollout(FIRST, "all 2,048", full=True),
        Measurement("rollout", f"evaluator, {FIRST}, 512 rows", "evaluator", FIRST),
        *(_rollout(model, "mean 1,200") for model in MODELS[1:]),
        _rollout(FIRST, "without CUDA graphs", graphs=False),
        _rollout(FIRST, "unmerged, plain decoding", merge=False, static=False),
    ],
    "step": [
        _step(FIRST, "vllm"),
        _step(FIRST),
        *(_step(model, "vllm") for model in (*MODELS[:0:-1], REAL)),
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
