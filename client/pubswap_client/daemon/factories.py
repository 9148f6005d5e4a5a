"""Make the trainer and the engine from a client's settings, for a run or the doctor's trial."""

import hashlib
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pubswap_client.daemon.own_settings import own_rank, own_settings
from pubswap_client.distributed.process_group import ProcessGroup, ProcessGroupEngine, start_engine
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.engine_choice import chosen_engine, why_not_vllm
from pubswap_client.rollout.transformers_engine import RolloutEngine
from pubswap_client.settings import ClientSettings
from pubswap_client.state.membership import membership_path
from pubswap_client.state.privacy import PrivacyBudget
from pubswap_client.training.memory import TokenBudget, default_budget
from pubswap_client.training.mismatch import rounding_limit
from pubswap_client.training.team import SINGLE
from pubswap_client.training.trainer import LocalTrainer, Scorer
from pubswap_client.training.update import UpdateContext
from pubswap_protocol.command_line.logs import values
from pubswap_protocol.problems import Problem
from pubswap_protocol.settings import RunSettings

log = logging.getLogger(__name__)


def make_trainer(
    settings: ClientSettings,
    policy: Policy,
    engine: RolloutEngine,
    client: str,
    problems: Sequence[Problem],
    scorer: Scorer,
    process_group: ProcessGroup | None = None,
    privacy: PrivacyBudget | None = None,
) -> LocalTrainer:
    """The trainer of `client`; raises InvalidProblems if a private prompt is too long."""
    checkpointing, run = settings.gradient_checkpointing, policy.settings
    tokens = settings.micro_batch_tokens or default_budget(policy, checkpointing)
    updates = UpdateContext(
        policy=policy,
        budget=TokenBudget(tokens),
        checkpointing=checkpointing,
        team=process_group or SINGLE,
        own_rank=own_rank(settings, run),
    )
    limit = settings.vllm.max_mismatch or rounding_limit(policy.dtype, run.grpo.temperature)
    return LocalTrainer(
        updates=updates,
        engine=engine,
        client=client,
        problems=problems,
        scorer=scorer,
        # transformers samples from the trained weights themselves, merged on a GPU.
        max_mismatch=None if chosen_engine(settings, run) == "transformers" else limit,
        privacy=privacy.draws if privacy else None,
        own_grpo=own_settings(settings, run).grpo,
    )


def open_privacy(
    state: Path, run: str, private_settings: RunSettings, records: int
) -> PrivacyBudget | None:
    """A member's budget in a run with privacy.epsilon, kept in its state folder.

    `private_settings` are those of its private steps. Raises InvalidSettings if dp-accounting is
    not installed.
    """
    if private_settings.privacy is None:
        return None
    budget = PrivacyBudget(state, run, private_settings, records)
    sigma = budget.releases(len(budget.spent) + 1).noise_multiplier
    log.info("privacy", extra=values(epsilon=budget.epsilon, noise_multiplier=sigma))
    return budget


def make_engine(
    settings: ClientSettings,
    policy: Policy,
    model: Path,
    process_group: ProcessGroup | None = None,
    evaluator: bool = False,
) -> RolloutEngine:
    """The rollout engine for a policy on the base model in the folder `model`; close it after use.

    In a process group every process samples on its own device. Only a vLLM that spans several GPUs
    runs in the leader alone.

    Raises InvalidSettings if vLLM is not installed, or a server lacks a required option.
    """
    chosen = chosen_engine(settings, policy.settings)
    reason = why_not_vllm(settings, policy.settings) if settings.engine == "auto" else None
    log.info("Sampling with %s.%s", chosen, f" Not with vLLM: {reason}." if reason else "")
    if chosen == "vllm-server":
        from pubswap_client.rollout.vllm_server_engine import VllmServerEngine

        assert settings.vllm.adapter_dir is not None  # checked by the settings
        # Members may share the folder, so each gets a subfolder that is the same after a restart.
        # The state folder's path alone does not tell them apart: in containers it may be equal.
        membership, key = membership_path(settings.state), str(settings.state.resolve()).encode()
        if membership.exists():
            key += membership.read_bytes()
        owner = hashlib.sha256(key).hexdigest()[:12]
        work = settings.vllm.adapter_dir / f"member-{owner}"
        return VllmServerEngine(policy, model, work, settings.vllm)
    start = partial(start_engine, settings, policy, model, evaluator=evaluator)
    spread = chosen == "vllm" and settings.vllm.tensor_parallel > 1
    if process_group is None or spread:
        return start(settings.state)
    return ProcessGroupEngine(process_group, policy, settings.state, start)
