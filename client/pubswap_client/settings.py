"""A member's own settings: where its data, its model and its device are.

From the environment (PUBSWAP_CLIENT_...), then `client.toml`, then the command line, the last
winning. What is trained is the run's to say; where and on what is the organisation's.
"""

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

from pubswap_client.toml_files import read_toml
from pubswap_protocol.bounds import MAX_FACTOR, MAX_NUMBER, MAX_SECONDS, CpuSeconds, TimeSpan
from pubswap_protocol.errors import InvalidSettings, first_fault
from pubswap_protocol.files import expanded

Positive = Annotated[int, Field(gt=0, le=MAX_NUMBER)]
Parallel = Annotated[int, Field(gt=0, le=4096)]  # each of them costs something at once

# vLLM's engine arguments that have another place, and that place.
NOT_EXTRA = {
    "model": "model",
    "tokenizer": "model",
    "revision": "revision",
    "tokenizer_revision": "revision",
    "dtype": "device: bfloat16 on a GPU and float32 on a CPU",
    "max_model_len": "the run's grpo.max_prompt_tokens and grpo.max_response_tokens",
    "max_lora_rank": "the run's lora.rank",
    "enable_lora": "nothing: the adapter is always served so",
    "max_loras": "nothing: one adapter is served at a time",
    "max_cpu_loras": "nothing: one adapter is served at a time",
    "logprobs_mode": "nothing: training needs the sampled distribution's",
    "enable_sleep_mode": "vllm.sleep",
    "gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "kv_cache_memory_bytes": "vllm.kv_cache_gib",
    "tensor_parallel_size": "vllm.tensor_parallel",
    "data_parallel_size": "processes",
    "device_ids": "processes, or CUDA_VISIBLE_DEVICES",
    "disable_log_stats": "nothing: vLLM's output is kept short",
}


class VllmSettings(BaseModel, extra="forbid", frozen=True):
    """The table `[vllm]`: how `engine = "vllm"` starts vLLM, where `"vllm-server"` finds it."""

    urls: tuple[str, ...] = Field(
        default=(), description="vllm-server: the replicas, such as http://gpu-1:8000."
    )
    adapter_dir: Path | None = Field(
        default=None,
        description="vllm-server: a folder that we write and all replicas read, at the same path.",
    )
    api_key: SecretStr | None = Field(
        default=None, description="vllm-server: what the replicas were given as --api-key."
    )
    connect_seconds: float = Field(
        default=120,
        ge=0,
        le=MAX_SECONDS,
        description="vllm-server: how long to wait for a replica to come back.",
    )
    response_seconds: TimeSpan = Field(
        default=3600, description="vllm-server: how long one prompt's responses may take."
    )
    sleep: bool | Literal["auto"] = Field(
        default="auto",
        description="vllm: leave the GPU's memory to the trainer while nothing is sampled. auto: "
        "unless both are estimated to fit at once.",
    )
    gpu_memory_utilization: float = Field(
        default=0.4, gt=0, lt=1, description="vllm: the share of the GPU's memory it may take."
    )
    kv_cache_gib: float | None = Field(
        default=None,
        gt=0,
        le=MAX_FACTOR,
        description="vllm: the key-value cache; by default what that share leaves, 1 on a CPU.",
    )
    tensor_parallel: Parallel = Field(default=1, description="vllm: GPUs for one replica.")
    max_mismatch: float | None = Field(
        default=None,
        gt=0,
        le=MAX_FACTOR,
        description="Mean difference between the engine's and the trainer's log-probabilities, in "
        "nats a token, from which the engine is taken to serve another policy. By default more "
        "than rounding gives: 0.25 / temperature on a GPU, 0.05 on a CPU. Quantized weights may "
        "need more.",
    )
    extra: dict[str, JsonValue] = Field(
        default={},
        description="vllm: a table of further engine arguments under vLLM's own names, such as "
        "max_num_seqs, kv_cache_dtype, quantization or speculative_config.",
    )

    @field_validator("extra")
    @classmethod
    def _extra_is_not_ours(cls, extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in extra.keys() & NOT_EXTRA.keys():
            raise ValueError(
                f"{name} does not belong in vllm.extra; it follows from {NOT_EXTRA[name]}"
            )
        return extra


class ClientSettings(BaseSettings):
    """`client.toml`, validated. Relative paths are relative to the file."""

    model_config = SettingsConfigDict(
        env_prefix="PUBSWAP_CLIENT_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    state: Path = Field(default=Path("pubswap-state"), description="Token and local progress.")
    data: Path | None = Field(default=None, description="The private JSONL; it is only ever read.")
    holdout: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Private problems that are never trained on. Each round's global adapter gives "
        "one response to each of them, and the share of right ones is kept in the state folder; "
        "nothing of it is sent. 0: none.",
    )
    model: str | None = Field(
        default=None, description="A local folder or a hub id; by default the run's own source."
    )
    revision: str | None = Field(default=None, description="The hub revision.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto: a GPU if any."
    )
    threads: Parallel | None = Field(
        default=None, description="CPU threads of each process; by default all, shared out."
    )
    processes: Parallel = Field(
        default=1, description="Processes that share each update, one for each GPU."
    )
    shard: bool = Field(
        default=False,
        description="Spread the base model's layers over the processes (FSDP2), for one that does "
        "not fit a GPU. Sample with vllm-server then: transformers samples slowly in shards.",
    )
    round_steps: Positive | None = Field(
        default=None,
        description="Hand in after so many local steps of a round, where the run takes fewer than "
        "all of them (members.fewest_steps).",
    )
    round_seconds: TimeSpan | None = Field(
        default=None,
        description="Begin no further local step after so many seconds of a round, where the run "
        "takes fewer steps.",
    )
    prompts_per_step: Positive | None = Field(
        default=None,
        description="b of this member's private steps, where it is to be less than the run's.",
    )
    responses_per_prompt: Annotated[int, Field(ge=2, le=MAX_NUMBER)] | None = Field(
        default=None,
        description="K of this member's private steps, where it is to be less than the run's.",
    )
    rank: Positive | None = Field(
        default=None,
        description="The rank that this member trains and sends, where the run takes less than its "
        "own (lora.min_rank).",
    )
    micro_batch_tokens: Positive | None = Field(
        default=None,
        description="Tokens computed at a time in the update; by default what memory is estimated "
        "to hold. It halves by itself when memory runs out.",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute layers twice and keep much less of them in memory."
    )
    engine: Literal["auto", "transformers", "vllm", "vllm-server"] = Field(
        default="auto",
        description="What samples: transformers, a vLLM that we start, or `vllm serve` replicas. "
        "auto: vLLM where it is installed and there is a GPU, else transformers.",
    )
    vllm: VllmSettings = VllmSettings()
    track: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        default=(), description="Where each step's figures go besides the terminal."
    )
    log_format: Literal["json", "console"] = Field(
        default="console", description="json for machines, console for people."
    )
    keep_sent_adapters: bool = Field(
        default=False,
        description="Keep the bytes of the adapters that were sent beside the ledger, which "
        "otherwise has their digests.",
    )
    rollout_rows: Positive = Field(
        default=512,
        description="Sequences that transformers samples at a time at most: on a GPU, as many of "
        "them as are estimated to fit. It halves by itself when memory runs out.",
    )
    verifier_workers: Parallel = Field(
        default=1, description="Processes for verifiers that could hang."
    )
    verifier_seconds: CpuSeconds = Field(
        default=5.0, description="CPU time: a response that takes longer to verify is wrong."
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
    try:
        return ClientSettings(**values)
    except ValidationError as error:
        raise InvalidSettings(f"{config or 'settings'}: {first_fault(error)}") from None
    except SettingsError as error:
        raise InvalidSettings(
            f"settings: {error}: in the environment a list or a table is JSON, such as "
            """PUBSWAP_CLIENT_TRACK='["tensorboard"]'."""
        ) from None


def _relative_to(folder: Path, table: Any, keys: tuple[str, ...]) -> None:
    """Make these paths of a table relative to a folder; other types are pydantic's to refuse."""
    for key in keys:
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = folder / expanded(table[key])
