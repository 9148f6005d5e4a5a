"""A member's own settings: its data, its model and its device.

They are read from the environment (PUBSWAP_CLIENT_...), `client.toml` and the command line; the
later source wins. The run decides what is trained, the organisation where and on which data.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    JsonValue,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from pubswap_client.options import ClientOptions
from pubswap_client.toml_files import read_toml
from pubswap_protocol.bounds import MAX_COUNT, MAX_FACTOR, MAX_NUMBER
from pubswap_protocol.command_line.keys import dotted_keys, key_fault
from pubswap_protocol.command_line.removed import removal
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.files import expanded

Positive = Annotated[int, Field(gt=0, le=MAX_NUMBER)]
Parallel = Annotated[int, Field(gt=0, le=4096)]  # bounded, because each one takes resources at once

SHARE, CACHE = "gpu_memory_utilization", "kv_cache_memory_bytes"  # vLLM's own names
GPU_SHARE = 0.4

# vLLM's engine arguments that vllm.extra must not contain, and what sets them.
NOT_EXTRA = {
    "model": "model",
    "tokenizer": "model",
    "revision": "revision",
    "tokenizer_revision": "revision",
    "dtype": "dtype",
    "max_model_len": "the run's grpo.max_prompt_tokens and grpo.max_response_tokens",
    "max_lora_rank": "the run's lora.rank",
    "enable_lora": "PubSwap: the adapter is always served as a LoRA",
    "max_loras": "PubSwap: one adapter is served at a time",
    "max_cpu_loras": "PubSwap: one adapter is served at a time",
    "logprobs_mode": "PubSwap: training needs the sampled distribution's",
    "language_model_only": "PubSwap: prompts are text",
    "enable_sleep_mode": "vllm.sleep",
    "tensor_parallel_size": "vllm.tensor_parallel",
    "data_parallel_size": "processes",
    "device_ids": "processes, or CUDA_VISIBLE_DEVICES",
    "disable_log_stats": "PubSwap: vLLM's output is kept short",
}


class VllmSettings(BaseModel, extra="forbid", frozen=True):
    """`[vllm]`: how to start vLLM (`engine = "vllm"`) or reach it (`"vllm-server"`)."""

    urls: tuple[str, ...] = Field(
        default=(), description="vllm-server: the replicas, such as http://gpu-1:8000."
    )
    adapter_dir: Path | None = Field(
        default=None,
        description="vllm-server: a folder that the daemon writes and all replicas read, at the "
        "same path.",
    )
    api_key: SecretStr | None = Field(
        default=None, description="vllm-server: the replicas' --api-key."
    )
    sleep: bool | Literal["auto"] = Field(
        default="auto",
        description="vllm: release the GPU's memory to the trainer between rollouts. auto: only "
        "if both do not fit at once.",
    )
    tensor_parallel: Parallel = Field(default=1, description="vllm: GPUs for each replica.")
    max_mismatch: float | None = Field(
        default=None,
        gt=0,
        le=MAX_FACTOR,
        description="Mean difference between the engine's and the trainer's log-probabilities, in "
        "nats a token, above which training stops because the engine serves another policy. By "
        "default more than rounding explains: 0.25 / temperature in bfloat16, 0.05 in float32. "
        "Quantized weights may need more.",
    )
    extra: dict[str, JsonValue] = Field(
        default={},
        description="vllm: further engine arguments under vLLM's own names, such as max_num_seqs, "
        "kv_cache_dtype, quantization or speculative_config. gpu_memory_utilization is 0.4 unless "
        "given here, and kv_cache_memory_bytes 1 GiB on a CPU.",
    )

    @field_validator("extra")
    @classmethod
    def _extra_not_reserved(cls, extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in extra.keys() & NOT_EXTRA.keys():
            raise ValueError(
                f"{name} does not belong in vllm.extra; it is set by {NOT_EXTRA[name]}"
            )
        share, cache = extra.get(SHARE, GPU_SHARE), extra.get(CACHE)
        if not isinstance(share, float) or not 0 < share < 1:
            raise ValueError(f"{SHARE} is a share of the GPU's memory, above 0 and below 1")
        if cache is not None and (type(cache) is not int or not 0 < cache <= MAX_COUNT):
            raise ValueError(f"{CACHE} is a number of bytes")
        return extra

    @property
    def gpu_share(self) -> float:
        """vLLM's share of the GPU's memory."""
        share = self.extra.get(SHARE, GPU_SHARE)
        assert isinstance(share, float)
        return share

    @property
    def cache_bytes(self) -> int | None:
        """The size of the key-value cache; None for the rest of that share."""
        cache = self.extra.get(CACHE)
        assert cache is None or isinstance(cache, int)
        return cache


class ClientSettings(ClientOptions, BaseSettings):
    """`client.toml`, validated. Relative paths are relative to the file."""

    model_config = SettingsConfigDict(
        env_prefix="PUBSWAP_CLIENT_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    holdout: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Number of private problems to hold out from training. Each round's global "
        "adapter answers each of them once. The share of correct responses stays in the state "
        "folder and is not sent. 0: none.",
    )
    revision: str | None = Field(default=None, description="Revision on the hub.")
    shard: bool = Field(
        default=False,
        description="Spread the base model's layers over the processes (FSDP2), if the model does "
        "not fit one GPU. Use it with vllm-server, because transformers samples slowly in shards.",
    )
    round_steps: Positive | None = Field(
        default=None,
        description="Local steps after which to hand in a round, if the run allows fewer steps "
        "(members.fewest_steps).",
    )
    prompts_per_step: Positive | None = Field(
        default=None, description="b for this member's private steps, if smaller than the run's."
    )
    responses_per_prompt: Annotated[int, Field(ge=2, le=MAX_NUMBER)] | None = Field(
        default=None, description="K for this member's private steps, if smaller than the run's."
    )
    rank: Positive | None = Field(
        default=None,
        description="Rank that this member trains and sends, if the run allows lower ranks "
        "(aggregation.rule.min_rank).",
    )
    micro_batch_tokens: Positive | None = Field(
        default=None,
        description="Tokens in a micro-batch of the update; by default estimated from the memory. "
        "Halved automatically when memory runs out.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute layers twice and keep much less of them in memory."
    )
    vllm: VllmSettings = VllmSettings()
    track: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        default=(), description="Trackers for each step's figures."
    )
    log_format: Literal["json", "console"] = Field(
        default="console", description="json for programs, console for people."
    )
    rollout_rows: Positive = Field(
        default=512,
        description="Largest batch of sequences for transformers; on a GPU, as many of these as "
        "should fit. Halved automatically when memory runs out.",
    )

    @model_validator(mode="after")
    def _settings_go_together(self) -> Self:
        if self.shard and self.processes == 1:
            raise ValueError("shard = true needs processes = 2 or more")
        if self.engine == "vllm-server" and not (self.vllm.urls and self.vllm.adapter_dir):
            raise ValueError("engine = 'vllm-server' needs vllm.urls and vllm.adapter_dir")
        return self


def load_settings(config: Path | None, **overrides: Any) -> ClientSettings:
    """Settings from a file and the command line; raises InvalidSettings naming the key."""
    values: dict[str, Any] = {}
    if config is not None:
        values = read_toml(config)
        _relative_to(config.parent, values, ("state", "data"))
        _relative_to(config.parent, values.get("vllm"), ("adapter_dir",))
        model = values.get("model")  # or a hub id
        if isinstance(model, str) and (folder := config.parent / expanded(model)).is_dir():
            values["model"] = str(folder)
    values |= {key: value for key, value in overrides.items() if value is not None}
    prefix = "PUBSWAP_CLIENT_"
    for name in sorted(os.environ):
        if name.startswith(prefix) and (gone := removal(name.removeprefix(prefix).lower())):
            raise InvalidSettings(f"{name}: {gone}. Remove it from the environment.")
    try:
        return ClientSettings(**values)
    except ValidationError as error:
        fault = key_fault(error.errors()[0], dotted_keys(ClientSettings))
        raise InvalidSettings(f"{config or 'settings'}: {fault}") from None
    except SettingsError as error:
        raise InvalidSettings(
            f"settings: {error}: in the environment, write a list or a table as JSON, such as "
            """PUBSWAP_CLIENT_TRACK='["tensorboard"]'."""
        ) from None


def _relative_to(folder: Path, table: Any, keys: tuple[str, ...]) -> None:
    """Resolve these paths of a table against a folder; pydantic rejects values of other types."""
    for key in keys:
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = folder / expanded(table[key])
