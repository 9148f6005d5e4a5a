"""Rollouts by a vLLM that this process runs, as a child process on the same device.

On a GPU it shares the memory with the trainer. If both do not fit at once, it sleeps (weights in
host memory, no key-value cache) whenever it is not sampling.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pubswap_client.policy.memory import release_cached_memory
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.hot_reload import AdapterVersion, HotReloadEngine, Sampled
from pubswap_client.rollout.transformers_engine import Prompts
from pubswap_client.rollout.vllm_sampling import lora_rank
from pubswap_client.settings import VllmSettings
from pubswap_protocol.errors import EngineFault, InvalidSettings, PubSwapError, StaleAdapter

log = logging.getLogger(__name__)

# A supervisor kills a process that does not end within ten seconds.
SHUTDOWN_SECONDS = 5.0
CPU_CACHE_BYTES = 1 << 30


class VllmEngine(HotReloadEngine):
    """vLLM with the policy's adapter on the frozen base model."""

    def __init__(
        self, policy: Policy, model: Path, work: Path, settings: VllmSettings, sleeps: bool = False
    ) -> None:
        """Start vLLM on the base model's folder; adapters are written below `work`.

        Raises InvalidSettings if vLLM is not installed or refuses the settings.
        """
        vllm = _import_vllm()
        self._sampling_params = vllm.SamplingParams
        self._lora_request = vllm.lora.request.LoRARequest
        self._sleeps = sleeps
        self._llm = _start(vllm, policy, model, settings, sleeps)
        super().__init__(policy, model, work)
        if self._sleeps:
            with _faults("fall asleep"):
                self._llm.sleep(level=1)

    def sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> list[list[Sampled]]:
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        sampling = [self._sampling_params(detokenize=False, **each) for each in parameters]
        with self._awake(), _faults("sample"):
            version = self.current()
            outputs = self._llm.generate(
                inputs, sampling, lora_request=self._request(version), use_tqdm=False
            )
        for output in outputs:
            served = output.lora_request.lora_name if output.lora_request else "the base model"
            if served != version.name:
                raise StaleAdapter(f"vLLM sampled from {served}, not from {version.name}.")
        return [
            [_sampled(one) for one in sorted(output.outputs, key=lambda one: int(one.index))]
            for output in outputs
        ]

    def close(self) -> None:
        """End vLLM's process, and delete the adapters."""
        try:
            super().close()
        finally:
            self._llm.llm_engine.engine_core.shutdown(timeout=SHUTDOWN_SECONDS)

    def load(self, version: AdapterVersion) -> None:
        with _faults(f"load the adapter {version.path}"):
            self._llm.llm_engine.add_lora(self._request(version))

    def unload(self, version: AdapterVersion) -> None:
        with _faults("unload an adapter"):
            self._llm.llm_engine.remove_lora(version.number)

    def check(self, version: AdapterVersion) -> None:
        with _faults("list its adapters"):
            loaded = self._llm.llm_engine.list_loras()
        if version.number not in loaded:
            raise StaleAdapter(
                f"vLLM does not serve adapter {version.number} ({version.name}), only "
                f"{sorted(loaded)}."
            )

    def _request(self, version: AdapterVersion) -> Any:
        return self._lora_request(version.name, version.number, str(version.path))

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if not self._sleeps:
            yield
            return
        # torch keeps memory that the update has freed, which would leave vLLM none.
        release_cached_memory()
        advice = (
            "If memory ran out, set a smaller vllm.extra.gpu_memory_utilization or "
            "micro_batch_tokens, or vllm.sleep = false, which reserves vLLM's memory from the "
            "start."
        )
        with _faults("wake up beside the trainer", advice):
            self._llm.wake_up()
        try:
            yield
        except BaseException:
            with suppress(Exception):  # a vLLM that has died cannot sleep; raise the cause instead
                self._llm.sleep(level=1)
            raise
        with _faults("fall asleep"):
            self._llm.sleep(level=1)


def engine_arguments(
    policy: Policy, model: Path, settings: VllmSettings, sleeps: bool, float_logits: bool = True
) -> dict[str, Any]:
    """vLLM's arguments from the policy, the settings, and `[vllm.extra]`.

    Each of several processes runs vLLM on its policy's GPU. Below float32, vLLM is asked for
    logits in float32, because half precision rounds a logit of 20 by up to 0.06.
    """
    on_cpu = policy.device.type == "cpu"
    cache = settings.cache_bytes or (CPU_CACHE_BYTES if on_cpu else None)
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
        "language_model_only": bool(policy.card.text_model),  # no vision tower on the GPU
        "enable_sleep_mode": sleeps,
        "gpu_memory_utilization": settings.gpu_share,
        "kv_cache_memory_bytes": cache,
        "tensor_parallel_size": settings.tensor_parallel,
        "enforce_eager": on_cpu,  # no CUDA graphs and no compilation
        "disable_log_stats": True,
    }
    if policy.device.index is not None and settings.tensor_parallel == 1:
        arguments["device_ids"] = [policy.device.index]
    if float_logits and dtype != "float32":
        arguments["hf_overrides"] = {"head_dtype": "float32"}
    for name, value in settings.extra.items():
        if isinstance(value, dict) and isinstance(arguments.get(name), dict):
            value = arguments[name] | value
        arguments[name] = value
    return arguments


def _start(vllm: Any, policy: Policy, model: Path, settings: VllmSettings, sleeps: bool) -> Any:
    """Start vLLM, without logits in float32 if it refuses them. Raises InvalidSettings."""
    arguments, plain = (
        engine_arguments(policy, model, settings, sleeps, asked) for asked in (True, False)
    )
    release_cached_memory()
    try:
        try:
            return vllm.LLM(**arguments)
        except Exception as error:
            if plain == arguments:
                raise
            log.info("vLLM did not start with logits in float32; trying without: %r", error)
        return vllm.LLM(**plain)
    except Exception as error:  # vLLM raises some as a bare Exception
        raise InvalidSettings(
            f"vLLM does not start with these settings: {error} Its output says why. If memory is "
            "short, set another vllm.extra.gpu_memory_utilization: that share must hold the "
            "weights and a key-value cache, and be free on the GPU."
        ) from error


def _sampled(output: Any) -> Sampled:
    steps = zip(output.logprobs, output.token_ids, strict=True)
    return output.token_ids, [step[token].logprob for step, token in steps]


@contextmanager
def _faults(what: str, advice: str = "") -> Iterator[None]:
    """Raise any error of vLLM's own, such as the death of its process, as an EngineFault."""
    try:
        yield
    except PubSwapError:
        raise
    except Exception as error:
        raise EngineFault(
            f"vLLM could not {what}: {error!r}; its output says why. {advice}".rstrip()
        ) from error


def _import_vllm() -> Any:
    # No usage data may leave the organisation.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    # A forked child would inherit broken torch threads, and a CUDA context it cannot use.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    try:
        import vllm
        import vllm.lora.request
    except ImportError as error:
        raise InvalidSettings(
            f"engine = 'vllm' needs vLLM ({error}): pip install '.[client,vllm]', in an "
            "environment without pubswap's server extra. Or use engine = 'transformers'."
        ) from None
    return vllm
