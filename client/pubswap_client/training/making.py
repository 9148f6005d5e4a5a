"""A trainer as a client's settings want it: the same for a run and for the doctor's trial."""

from collections.abc import Sequence

from pubswap_client.settings import ClientSettings
from pubswap_client.training.budget import TokenBudget
from pubswap_client.training.crew import Crew
from pubswap_client.training.memory import default_budget
from pubswap_client.training.policy import Policy
from pubswap_client.training.rewards import Scorer
from pubswap_client.training.rollout import RolloutEngine
from pubswap_client.training.team import ALONE
from pubswap_client.training.trainer import LocalTrainer
from pubswap_protocol.problems import Problem


def make_trainer(
    settings: ClientSettings,
    policy: Policy,
    engine: RolloutEngine,
    client: str,
    problems: Sequence[Problem],
    scorer: Scorer,
    crew: Crew | None,
) -> LocalTrainer:
    """The trainer of `client`; raises InvalidProblems if a private prompt is too long."""
    checkpointing = settings.gradient_checkpointing
    tokens = settings.micro_batch_tokens or default_budget(policy, checkpointing)
    return LocalTrainer(
        policy=policy,
        engine=engine,
        settings=policy.settings,
        client=client,
        problems=problems,
        scorer=scorer,
        budget=TokenBudget(tokens),
        checkpointing=checkpointing,
        team=crew or ALONE,
        # transformers samples from the very weights that are trained.
        max_mismatch=None if settings.engine == "transformers" else settings.vllm.max_mismatch,
    )
