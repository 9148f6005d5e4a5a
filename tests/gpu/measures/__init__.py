"""The measurements: each function takes the context and a model's name, and returns figures."""

from gpu.measures.exactness import exactness
from gpu.measures.learning import learning
from gpu.measures.peer import peer
from gpu.measures.rollout import evaluator, rollout
from gpu.measures.step import step
from gpu.measures.update import update

WORKS = {
    "update": update,
    "exactness": exactness,
    "peer": peer,
    "rollout": rollout,
    "evaluator": evaluator,
    "step": step,
    "learning": learning,
}
