"""The engine arguments of the vLLM that we start."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.vllm_sampling import lora_rank
from pubswap_client.settings import VllmSettings
from pubswap_protocol.errors import InvalidSettings

CPU_CACHE_GIB = 1.0


def engine_arguments(
    policy: Policy, model: Path, settings: VllmSettings, sleeps: bool
) -> dict[str, Any]:
    """Those that follow from the policy and the settings, and `[vllm.extra]`.

    A process of several gets the GPU that its policy is on. Below float32, vLLM is asked for
    logits in float32: half precision rounds a logit of 20 by up to 0.06.
    """
    on_cpu = policy.device.type == "cpu"
    cache = settings.kv_cache_gib or (CPU_CACHE_GIB if on_cpu else None)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    arguments: dict[str, Any] = {
        "model": str(model),
        "dtype": dtype,
        "enable_lora": True,
        "max_loras": 1,
        "max_cpu_loras": 2,
        "max_lora_rank": lora_rank(policy.settings.lora.rank),
        "logprobs_mode": "processed_logprobs",
        "max_model_len": policy.settings.grpo.longest_row,
        "enable_sleep_mode": sleeps,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": None if cache is None else int(cache * 2**30),
        "tensor_parallel_size": settings.tensor_parallel,
        "enforce_eager": on_cpu if settings.enforce_eager is None else settings.enforce_eager,
        "disable_log_stats": True,
    }
    if policy.device.index is not None and settings.tensor_parallel == 1:
        arguments["device_ids"] = [policy.device.index]
    if dtype != "float32":
        arguments["hf_overrides"] = {"head_dtype": "float32"}
    for name, value in settings.extra.items():
        if isinstance(value, dict) and isinstance(arguments.get(name), dict):
            value = arguments[name] | value
        arguments[name] = value
    return arguments


def without_own_head(arguments: Mapping[str, Any], settings: VllmSettings) -> dict[str, Any] | None:
    """The arguments without logits in float32; None if they were not asked for by us alone."""
    overrides = settings.extra.get("hf_overrides", {})
    if "hf_overrides" not in arguments or not isinstance(overrides, dict):
        return None
    if "head_dtype" in overrides:
        return None
    return {**arguments, "hf_overrides": overrides}


def check_extra(extra: Iterable[str], known: Iterable[str], version: str) -> None:
    """Raises InvalidSettings for a name of `[vllm.extra]` that this vLLM does not know."""
    known = list(known)
    for name in extra:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; {close[0]} is the nearest that it has" if close else ""
            raise InvalidSettings(
                f"vllm.extra.{name}: vLLM {version} has no such engine argument{hint}."
            )
