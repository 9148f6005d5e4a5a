"""An organisation whose rollouts are vLLM's, in a federation of real processes."""

from pathlib import Path

import pytest

from pubswap_client.demo.processes import Processes
from pubswap_protocol.messages import RunState
from support.processes import create_run, enroll, serve, start, start_client, wait_finished
from support.replicas import needs_vllm

# The coordinator's fastapi is newer than vLLM allows, so it has an environment of its own.
COORDINATOR = Path(__file__).parents[2] / ".venv" / "bin" / "pubswap"

pytestmark = [
    needs_vllm,
    pytest.mark.skipif(not COORDINATOR.exists(), reason="the coordinator's .venv: make install"),
]
CONFIG = """
[vllm]
urls = ["{first}", "{second}"]
adapter_dir = "shared"
kv_cache_gib = 0.25
"""


@pytest.mark.parametrize("engine", ["vllm", "vllm-server"])
def test_a_client_whose_rollouts_are_vllm_s_finishes_a_run(
    engine: str, tmp_path: Path, servers: dict[str, str]
) -> None:
    """Two rounds with private and public steps, with adapters that move from round to round."""
    with Processes(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path, program=(str(COORDINATOR),))
        with coordinator.api:
            run = create_run(coordinator, {"clients": 1})
            state = enroll(coordinator, run, "alpha")
            (tmp_path / "client.toml").write_text(CONFIG.format(**servers))
            options = ["--engine", engine, "--config", str(tmp_path / "client.toml")]
            start_client(coordinator, state, seed=3, more=options)
            start(coordinator, run)
            view = wait_finished(coordinator, run)
            assert view.state is RunState.FINISHED
            adapters = [coordinator.api.global_adapter(run.id, str(n)) for n in range(3)]
    assert len(set(adapters)) == 3
    left = tmp_path / "shared" if engine == "vllm-server" else state / "adapters"
    assert left.is_dir()
    assert list(left.rglob("*.safetensors")) == []
