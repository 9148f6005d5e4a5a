"""Whether training on this device learns: the demo's model, on the demo's problems."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks.gpu.context import Context
from benchmarks.timing import Clock
from pubswap_client.daemon.evaluator import judge, pass_at_1
from pubswap_client.policy.policy import Policy
from pubswap_client.policy.self_check import check_packed_path
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.training.memory import TokenBudget, default_budget
from pubswap_client.training.trainer import LocalTrainer
from pubswap_client.training.update import UpdateContext
from pubswap_protocol.model import model_card
from pubswap_protocol.problems import Problem, read_problems
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import initial_adapter
from pubswap_protocol.verifiers.confined.worker import Scored
from pubswap_protocol.verifiers.exact import Exact

# Drawn from reasoning-gym like the demo's, but not needing it, because answers are compared.
PROBLEMS = Path(__file__).parents[1] / "problems.jsonl"
MODEL = Path(str(files("pubswap_client") / "demo" / "model"))


def learning(context: Context, model: str) -> dict[str, Any]:
    """pass@1 before and after a client's rounds with the demo's settings, without a federation."""
    scale = context.scale
    settings = RunSettings.model_validate(
        {
            "method": "fedavg",
            "clients": 1,
            "local_steps": scale.steps,
            "verifier": "exact",
            "chat_template": "none",
            "grpo": {"learning_rate": 5e-4, "max_prompt_tokens": 64, "max_response_tokens": 48},
            "evaluation": {"samples": 4},
        }
    )
    problems = read_problems(PROBLEMS)
    private = [problem for problem in problems if problem.id.startswith("train-")]
    tested = [problem for problem in problems if problem.id.startswith("test-")][: scale.tested]
    card = model_card(MODEL, settings.lora, "demo", None)
    policy = Policy.load(MODEL, card, settings, context.device)
    check_packed_path(policy)
    engine = TransformersEngine(policy)
    updates = UpdateContext(policy, TokenBudget(default_budget(policy, False)))
    trainer = LocalTrainer(updates, engine, "gpu", private, exact)
    clock = Clock(context.device)
    started = clock()
    adapter = initial_adapter(card.layout, settings.seed)
    policy.load_adapter(adapter)
    curve = [pass_at_1(judge(policy, engine, tested, judged, seed=0))[0]]
    seconds = [clock() - started]
    for number in range(1, scale.rounds + 1):
        if number > 1 and context.seconds_left < 1.5 * (seconds[-1] - seconds[-2]):
            break
        trainer.begin_round(number, adapter)
        for step in range(1, scale.steps + 1):
            trainer.private_step(step)
        adapter = trainer.adapter()
        curve.append(pass_at_1(judge(policy, engine, tested, judged, seed=0))[0])
        seconds.append(clock() - started)
    engine.close()
    return {
        "seconds": seconds[-1],
        "pass_at_1": curve,
        "at_seconds": seconds,
        "steps": scale.steps * (len(curve) - 1),
    }


def judged(cases: Sequence[tuple[str, Problem]]) -> list[Scored]:
    """As `exact`, for an evaluation."""
    return [Scored(score, 0.0) for score in exact(cases)]


def exact(cases: Sequence[tuple[str, Problem]]) -> list[float]:
    """Rewards of responses to problems."""
    return [Exact().score(response, problem) for response, problem in cases]
