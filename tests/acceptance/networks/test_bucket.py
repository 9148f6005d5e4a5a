"""Real daemons whose adapters go straight to a real bucket, from `enroll` to the final adapter."""

import re
from pathlib import Path

import pytest

from pubswap_protocol.messages import CreateInvite, RunView
from support.chaos.proxy import FaultProxy
from support.coordinator.processes import (
    Coordinator,
    create_run,
    federated_adapter,
    serve,
    start,
    start_client,
    wait_finished,
)
from support.coordinator.s3 import BUCKET, serving_s3
from support.forked import ForkedProcesses, pubswap

pytestmark = pytest.mark.full
ROUNDS = {"rounds": 2, "method": "fedavg"}


def enrolled(coordinator: Coordinator, run: RunView, name: str) -> Path:
    """An organisation's state folder, made by its own command."""
    invite = coordinator.api.invite(run.id, CreateInvite(name=name)).invite
    state = coordinator.folder / name
    joining = ["--coordinator", coordinator.api.url, "--invite", invite, "--state", str(state)]
    ended = pubswap("client", "enroll", *joining)
    assert ended.returncode == 0, ended.stderr
    return state


def test_adapters_of_daemons_go_straight_to_the_bucket_if_their_policy_says_so(
    tmp_path: Path,
) -> None:
    """`enroll` writes that line; without it they go through the coordinator. Results are equal."""
    folder = tmp_path / "federation"
    folder.mkdir()
    with (
        serving_s3(tmp_path / "s3") as s3,
        FaultProxy(int(s3.url.rsplit(":", 1)[-1]), keeps=True) as outside,
        ForkedProcesses(folder / "logs") as processes,
    ):
        places = {
            "PUBSWAP_BLOB_URL": f"s3://{BUCKET}/prefix",
            "PUBSWAP_BUCKET_ENDPOINT": outside.url,
        }
        coordinator = serve(processes, folder, env=s3.environment() | places)
        assert "straight to the bucket" in (folder / "logs" / "coordinator.log").read_text()
        with coordinator.api:
            run = create_run(coordinator, ROUNDS)
            states = [enrolled(coordinator, run, name) for name in ("alpha", "beta")]
            for state in states:
                assert f'buckets = ["{outside.url}/{BUCKET}/prefix"]' in policy(state).read_text()
            text = policy(states[1]).read_text()
            policy(states[1]).write_text(re.sub("(?m)^buckets = .*\n", "", text))
            for seed, state in enumerate(states, start=3):
                start_client(coordinator, state, seed=seed)
            start(coordinator, run)
            view = wait_finished(coordinator, run)
            final = coordinator.api.global_adapter(run.id, "final")
        puts = [path for one in outside.sent for path in re.findall(rb"PUT (\S+) HTTP", one)]
        assert len(puts) == 2  # alpha's, of two rounds
        assert all(b"X-Amz-Signature=" in path for path in puts)
    assert len(view.rounds) == 2 + 1
    assert final == federated_adapter(tmp_path / "plain", ROUNDS)[1]


def policy(state: Path) -> Path:
    return state / "policy.toml"
