"""Engine selection for `engine = "auto"`."""

from importlib.util import find_spec
from typing import Literal

import torch

from pubswap_client.rollout.vllm_sampling import LORA_RANKS, LOWEST_TEMPERATURE
from pubswap_client.settings import ClientSettings
from pubswap_protocol.settings import RunSettings

Engine = Literal["transformers", "vllm", "vllm-server"]


def chosen_engine(settings: ClientSettings, run: RunSettings) -> Engine:
    """The engine of the settings; for auto, vLLM unless `why_not_vllm` gives a reason."""
    if settings.engine != "auto":
        return settings.engine
    return "transformers" if why_not_vllm(settings, run) else "vllm"


def why_not_vllm(settings: ClientSettings, run: RunSettings) -> str | None:
    if settings.device == "cpu" or not torch.cuda.is_available():
        return "there is no GPU"
    if find_spec("vllm") is None:
        return "vLLM is not installed"
    if settings.shard:
        return "the base model is sharded"
    if min(run.grpo.temperature, run.evaluation.temperature) < LOWEST_TEMPERATURE:
        return f"vLLM does not sample below temperature {LOWEST_TEMPERATURE}"
    if run.lora.rank > LORA_RANKS[-1]:
        return f"vLLM serves no adapters above rank {LORA_RANKS[-1]}"
    return None
