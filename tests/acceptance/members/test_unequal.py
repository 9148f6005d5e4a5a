"""Real daemons with different settings."""

from pathlib import Path

import pytest

from support.coordinator.processes import (
    create_run,
    enroll,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.forked import ForkedProcesses

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("unmeasured")]


def test_daemons_of_unequal_means_make_one_adapter(tmp_path: Path) -> None:
    """One trains rank 1, on fewer prompts and responses, and sends an eighth of the bytes."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "client.toml").write_text(
        "rank = 1\nprompts_per_step = 2\nresponses_per_prompt = 2\nmicro_batch_tokens = 200\n"
    )
    settings = {
        "aggregation.rule": "svd",
        "lora.rank": 8,
        "aggregation.rule.min_rank": 1,
        "wire.precision": "bfloat16",
    }
    with ForkedProcesses(folder / "logs") as processes:
        coordinator = serve(processes, folder)
        with coordinator.api as api:
            view = create_run(coordinator, settings)
            small = ["--config", str(folder / "client.toml")]
            start_client(coordinator, enroll(coordinator, view, "alpha"), 3, more=small)
            start_client(coordinator, enroll(coordinator, view, "beta"), 4)
            start(coordinator, view)
            done = wait_finished(coordinator, view)
            sent = {m.name: m.traffic.adapters_up for m in api.members(view.id).members}
            kinds = [event.kind for event in api.events(view.id).events]
    assert [summary.updates for summary in done.rounds[1:]] == [2, 2]
    assert 5 < sent["beta"] / sent["alpha"] < 8
    assert kinds.count("rank truncated") == 2
    assert done.rounds[2].public_steps[0].clients == 2
