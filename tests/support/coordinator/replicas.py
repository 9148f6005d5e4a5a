"""Real `vllm serve` replicas of the demo's model, for tests in vLLM's environment."""

import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_client.demo.processes import Processes, free_port
from pubswap_client.rollout.vllm_http import InferenceServer
from pubswap_protocol.errors import EngineFault

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM: make test-vllm")

# `vllm serve` by its module, because the command needs a package called vllm and the CPU build has
# another name.
SERVE = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
LONGEST = 96  # 64 tokens of the prompt and 32 of the response
LORA = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--max-cpu-loras", "4")
RIGHT = (*LORA, "--logprobs-mode", "processed_logprobs")
QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1"}


def start_replica(
    processes: Processes,
    name: str,
    options: Sequence[str] = RIGHT,
    updating: bool = True,
    served: Path = MODEL,
) -> str:
    """Start `vllm serve` on a free port; returns its URL at once."""
    port = free_port()
    model = ["--model", str(served), "--dtype", "float32", "--max-model-len", str(LONGEST)]
    small = ["--enforce-eager", "--kv-cache-memory-bytes", str(2**28), "--max-num-seqs", "32"]
    where = ["--host", "127.0.0.1", "--port", str(port)]
    env = QUIET | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True" if updating else "False"}
    processes.start(name, [*model, *small, *where, *options], env, program=SERVE)
    return f"http://127.0.0.1:{port}"


def wait_for_replica(processes: Processes, url: str, seconds: float = 300) -> None:
    """Return when it answers; fails with its log if it died."""
    deadline = time.monotonic() + seconds
    server = InferenceServer(url, connect_seconds=0)
    try:
        while True:
            try:
                server.models()
                return
            except EngineFault:
                processes.check()
                assert time.monotonic() < deadline, f"{url} does not start"
                time.sleep(0.5)
    finally:
        server.close()
