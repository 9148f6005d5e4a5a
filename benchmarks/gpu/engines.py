"""The rollout engines by the names that `engine` has in client.toml, started as the daemon does."""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.context import Context, NotRun
from pubswap_client.daemon.factories import make_engine
from pubswap_client.demo.processes import Processes, free_port
from pubswap_client.policy.policy import Policy
from pubswap_client.rollout.vllm_http import InferenceServer
from pubswap_client.rollout.vllm_server_engine import serve_command
from pubswap_client.settings import ClientSettings, VllmSettings
from pubswap_protocol.errors import EngineFault

# By its module, because wheels that are only unpacked have no commands.
SERVE = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model")
CPU_CACHE_BYTES = 1 << 28


@contextmanager
def sampling(
    context: Context, policy: Policy, model: Path, engine: str, **vllm: Any
) -> Iterator[Any]:
    """A RolloutEngine for a policy on the base model in the folder `model`.

    `vllm` are fields of VllmSettings. Raises NotRun if vLLM is needed and not installed.
    """
    if engine != "transformers" and find_spec("vllm") is None:
        raise NotRun("vllm is not installed")
    if context.device.type == "cpu":
        vllm["extra"] = {"kv_cache_memory_bytes": CPU_CACHE_BYTES} | vllm.get("extra", {})
    with Processes(context.scratch / "servers") as processes:
        if engine == "vllm-server":
            vllm["urls"] = (_serve(context, processes, policy, model),)
            vllm["adapter_dir"] = context.scratch / "adapters"
        state = context.scratch / f"{engine}-state"
        settings = ClientSettings(engine=engine, state=state, vllm=VllmSettings(**vllm))
        with closing(make_engine(settings, policy, model)) as made:
            yield made


def _serve(context: Context, processes: Processes, policy: Policy, model: Path) -> str:
    """Start `vllm serve` beside the trainer as our messages recommend; returns its URL."""
    command = serve_command(policy, model).split(" ")
    served = command.index(str(model))
    variables = dict(word.split("=", 1) for word in command[:served] if "=" in word)
    port = free_port()
    share = ["--gpu-memory-utilization", "0.4"]  # the daemon's own share
    if context.device.type == "cpu":
        share = ["--kv-cache-memory-bytes", str(CPU_CACHE_BYTES), "--enforce-eager"]
    arguments = [*command[served:], *share, "--host", "127.0.0.1", "--port", str(port)]
    processes.start("vllm-server", arguments, variables, program=SERVE)
    url = f"http://127.0.0.1:{port}"
    with closing(InferenceServer(url, connect_seconds=0)) as server:
        while True:
            try:
                server.models()
                return url
            except EngineFault:
                processes.check()
                if context.seconds_left < 0:
                    raise NotRun("`vllm serve` did not start in time") from None
            time.sleep(0.5)
