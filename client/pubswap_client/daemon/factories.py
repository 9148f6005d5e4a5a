"""The trainer and the engine of a client's settings: the same for a run and a doctor's trial."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

from pubswap_client.distributed.process_group import ProcessGroup, ProcessGroupEngine
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.engine_choice import chosen_engine, why_not_vllm
from pubswap_client.rollout.transformers_engine import RolloutEngine, TransformersEngine
from pubswap_client.settings import ClientSettings
from pubswap_client.training.memory import TokenBudget, default_budget
from pubswap_client.training.team import SINGLE
from pubswap_client.training.trainer import LocalTrainer, Scorer
from pubswap_protocol.problems import Problem

log = logging.getLogger(__name__)


def make_trainer(
    settings: ClientSettings,
    policy: Policy,
    engine: RolloutEngine,
    client: str,
    problems: Sequence[Problem],
    scorer: Scorer,
    process_group: ProcessGroup | None,
) -> LocalTrainer:
    """The trainer of `client`; raises InvalidProblems if a private prompt is too long."""
    checkpointing, engine_name = (
        settings.gradient_checkpointing,
        chosen_engine(settings, policy.settings),
    )
    tokens = settings.micro_batch_tokens or default_budget(policy, checkpointing)
    return LocalTrainer(
        policy,
        engine,
        policy.settings,
        client,
        problems,
        scorer,
        TokenBudget(tokens),
        checkpointing,
        process_group or SINGLE,
        # transformers samples from the weights that are trained, on a GPU merged.
        max_mismatch=None if engine_name == "transformers" else settings.vllm.max_mismatch,
    )


def make_engine(
    settings: ClientSettings, policy: Policy, model: Path, process_group: ProcessGroup | None = None
) -> RolloutEngine:
    """The engine for a policy on the base model in the folder `model`; to be closed after use.

    In a process group, transformers samples on all processes; vLLM has its own parallelism.

    Raises InvalidSettings if vLLM is not installed, or a server was not started as it must be.
    """
    chosen = chosen_engine(settings, policy.settings)
    log.info("Sampling by %s.%s", chosen, _reason(settings, policy))
    if chosen == "vllm":
        from pubswap_client.rollout.vllm_engine import VllmEngine

        return VllmEngine(policy, model, settings.state / "adapters", settings.vllm)
    if chosen == "vllm-server":
        from pubswap_client.rollout.vllm_server_engine import VllmServerEngine

        assert settings.vllm.adapter_dir is not None  # checked by the settings
        # Members may share the folder; each has a part of it that is the same after a restart.
        owner = hashlib.sha256(str(settings.state.resolve()).encode()).hexdigest()[:12]
        work = settings.vllm.adapter_dir / f"member-{owner}"
        return VllmServerEngine(policy, model, work, settings.vllm)
    engine = TransformersEngine(policy, max_rows=settings.rollout_rows)
    return engine if process_group is None else ProcessGroupEngine(process_group, policy, engine)


def _reason(settings: ClientSettings, policy: Policy) -> str:
    """Why the engine `auto` is not vLLM; empty if it is, or if the settings name an engine."""
    reason = why_not_vllm(settings, policy.settings) if settings.engine == "auto" else None
    return f" Not by vLLM: {reason}." if reason else ""
