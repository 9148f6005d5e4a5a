"""The measurements: each function takes the context and a model's name, and returns figures."""

from benchmarks.gpu.measures.exactness import exactness
from benchmarks.gpu.measures.learning import learning
from benchmarks.gpu.measures.peer import peer
from benchmarks.gpu.measures.rollout import evaluator, rollout, vllm_rollout
from benchmarks.gpu.measures.step import step
from benchmarks.gpu.measures.update import update

WORKS = {
    "update": update,
    "exactness": exactness,
    "peer": peer,
    "rollout": rollout,
    "vllm": vllm_rollout,
    "evaluator": evaluator,
    "step": step,
    "learning": learning,
}
