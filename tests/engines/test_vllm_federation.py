"""An organisation whose rollouts are vLLM's, in a federation of real processes."""

import time
from pathlib import Path

import pytest

from pubswap_client.demo.processes import Processes
from pubswap_protocol.messages import RunState
from support.coordinator.processes import (
    create_run,
    enroll,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.coordinator.replicas import needs_vllm

# The coordinator's fastapi is newer than vLLM allows, so it has an environment of its own.
COORDINATOR = Path(__file__).parents[2] / ".venv" / "bin" / "pubswap"

pytestmark = [
    pytest.mark.full,
    needs_vllm,
    pytest.mark.skipif(not COORDINATOR.exists(), reason="the coordinator's .venv: make install"),
]
CONFIG = """
[vllm]
urls = ["{first}", "{second}"]
adapter_dir = "shared"
extra.kv_cache_memory_bytes = 268_435_456
"""


@pytest.mark.parametrize("engine", [pytest.param("vllm", marks=pytest.mark.full), "vllm-server"])
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
    # The client's own folder goes with its engine; one that is shared with servers stays.
    assert not (state / "adapters").exists()
    shared = tmp_path / "shared"
    assert shared.is_dir() == (engine == "vllm-server")
    assert list(shared.rglob("*.safetensors")) == []


def test_a_client_that_is_stopped_leaves_no_process_of_vllm(tmp_path: Path) -> None:
    """SIGTERM in mid-run: vLLM's own processes end too, and the adapters are deleted."""
    import psutil

    def of_vllm() -> set[psutil.Process]:
        children = psutil.Process().children(recursive=True)
        return {child for child in children if "VLLM" in child.name()}

    others = of_vllm()
    with Processes(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path, program=(str(COORDINATOR),))
        with coordinator.api:
            run = create_run(coordinator, {"clients": 1, "rounds": 99})
            state = enroll(coordinator, run, "alpha")
            start_client(coordinator, state, seed=3, more=["--engine", "vllm"])
            start(coordinator, run)
            while coordinator.api.run(run.id).round < 2:
                processes.check()
                time.sleep(0.2)
        started = of_vllm() - others
        assert started
    # They end by themselves when the client has ended, which may be a moment later.
    assert psutil.wait_procs(started, timeout=20)[1] == []
    assert not (state / "adapters").exists()
