"""The settings of this machine that are also options of the commands that compute.

They are apart from the other settings because help needs no package of the client's extra.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


class ClientOptions(BaseModel):
    """Files, model, device and engine."""

    state: Path = Field(
        default=Path("pubswap-state"),
        description="State folder, with the token and the local progress.",
    )
    data: Path | None = Field(default=None, description="Private problems (JSONL); only read.")
    model: str | None = Field(
        default=None, description="Base model: a local folder or a hub id; by default the run's."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto: a GPU if there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Precision of the base model; adapters are always float32. auto: bfloat16 on a "
        "GPU and float32 on a CPU. A CPU with AMX or AVX-512 BF16 is faster in bfloat16.",
    )
    threads: int | None = Field(
        default=None,
        gt=0,
        le=4096,  # as each takes resources at once
        description="CPU threads of each process; by default all cores, divided among the "
        "processes.",
    )
    processes: int = Field(
        default=1, gt=0, le=4096, description="Processes that share each update, one for each GPU."
    )
    engine: Literal["auto", "transformers", "vllm", "vllm-server"] = Field(
        default="auto",
        description="Rollout engine: transformers, a vLLM started by the daemon, or `vllm serve` "
        "replicas. auto: vLLM if it is installed and there is a GPU, otherwise transformers.",
    )
