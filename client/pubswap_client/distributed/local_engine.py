"""The engine of one process, on its own device."""

import logging
from pathlib import Path

import torch

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.engine_choice import chosen_engine
from pubswap_client.rollout.transformers_engine import TransformersEngine
from pubswap_client.rollout.vllm_engine import VllmEngine
from pubswap_client.settings import ClientSettings
from pubswap_client.training.memory import Device, estimate_memory

log = logging.getLogger(__name__)

LocalEngine = TransformersEngine | VllmEngine


def start_engine(
    settings: ClientSettings,
    policy: Policy,
    model: Path,
    state: Path,
    rank: int = 0,
    evaluator: bool = False,
) -> LocalEngine:
    """transformers, or a vLLM on the base model in the folder `model`.

    Each process writes adapters to a folder of its own in `state`.
    """
    if chosen_engine(settings, policy.settings) == "transformers":
        return TransformersEngine(policy, max_rows=settings.rollout_rows)
    work = state / (f"adapters-{rank}" if rank else "adapters")
    sleeps = policy.device.type == "cuda" and _sleeps(settings, policy, model, evaluator)
    return VllmEngine(policy, model, work, settings.vllm, sleeps)


def _sleeps(settings: ClientSettings, policy: Policy, model: Path, evaluator: bool) -> bool:
    """Whether vLLM leaves the GPU's memory to the trainer while nothing is sampled."""
    free, total = torch.cuda.mem_get_info(policy.device)
    # As it was before the policy was loaded, whose weights are in the estimate.
    free += torch.cuda.memory_reserved(policy.device)
    device = Device(str(policy.device), cuda=True, free=free, total=total, count=1)
    estimate = estimate_memory(settings, policy.settings, policy.card, model, device, evaluator)
    if settings.vllm.sleep == "auto":
        log.info(
            "vLLM stays awake: it and the trainer fit this GPU at once."
            if estimate.awake
            else "vLLM sleeps while nothing is sampled: it and the trainer do not fit this GPU."
        )
    return not estimate.awake
