"""Which rollout engine a member's settings ask for."""

import hashlib
from pathlib import Path

from pubswap_client.settings import ClientSettings
from pubswap_client.training.crew import Crew, CrewEngine
from pubswap_client.training.policy import Policy
from pubswap_client.training.rollout import RolloutEngine, TransformersEngine


def make_engine(
    settings: ClientSettings, policy: Policy, model: Path, crew: Crew | None = None
) -> RolloutEngine:
    """The engine for a policy on the base model in the folder `model`; to be closed after use.

    With a crew, transformers samples on all of its processes; vLLM has a parallelism of its own.

    Raises InvalidSettings if vLLM is not installed, or a server was not started as it must be.
    """
    if settings.engine == "vllm":
        from pubswap_client.training.vllm_engine import VllmEngine

        return VllmEngine(policy, model, settings.state / "adapters", settings.vllm)
    if settings.engine == "vllm-server":
        from pubswap_client.training.vllm_server import VllmServerEngine

        assert settings.vllm.adapter_dir is not None  # checked by the settings
        # Members may share the folder; each has a part of it that is the same after a restart.
        owner = hashlib.sha256(str(settings.state.resolve()).encode()).hexdigest()[:12]
        work = settings.vllm.adapter_dir / f"member-{owner}"
        return VllmServerEngine(policy, model, work, settings.vllm)
    engine = TransformersEngine(policy, max_rows=settings.rollout_rows)
    return engine if crew is None else CrewEngine(crew, policy, engine)
