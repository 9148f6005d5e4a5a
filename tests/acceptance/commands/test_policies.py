"""Policies in a federation of real processes."""

from pathlib import Path

import pytest

from pubswap_client.consent.local_policy import policy_path
from pubswap_client.ledger.ledger import ledger_folder
from pubswap_client.ledger.showing import entries
from pubswap_client.state.status import read_status
from pubswap_protocol import paths
from pubswap_protocol.messages import Away
from support.coordinator.processes import (
    Coordinator,
    create_run,
    enroll,
    serve,
    start,
    start_client,
)
from support.eventually import until
from support.forked import ForkedProcesses, pubswap

pytestmark = pytest.mark.usefixtures("unmeasured")


def reason(coordinator: Coordinator, run: str, name: str) -> Away | None:
    """Why a member is away, as the operator sees it."""
    coordinator.processes.check()
    return {m.name: m.away for m in coordinator.api.members(run).members}[name]


def updates(coordinator: Coordinator, run: str) -> list[int]:
    """How many members each averaged round has the updates of."""
    return [summary.updates for summary in coordinator.api.rounds(run, 0) if summary.adapter]


def kinds(state: Path) -> set[str]:
    """What a member has sent."""
    folder = ledger_folder(state)
    return {entry.kind for entry in entries(folder)} if folder.is_dir() else set()


@pytest.mark.full
def test_a_member_whose_policy_refuses_is_away_and_comes_back_when_it_allows(
    tmp_path: Path,
) -> None:
    """The other one goes on alone; approved, it takes part; limited in mid-run, it is away again.

    Until it is approved it has sent neither hello nor responses nor an adapter.
    """
    with ForkedProcesses(tmp_path / "logs") as processes:
        coordinator = serve(processes, tmp_path)
        with coordinator.api as api:
            run = create_run(coordinator, {"rounds": 1000})
            states = {name: enroll(coordinator, run, name) for name in ("alpha", "beta")}
            alpha = states["alpha"]
            policy_path(alpha).write_text('approve = "first"\n')
            for seed, state in enumerate(states.values(), start=3):
                start_client(coordinator, state, seed)
            start(coordinator, run)
            until(lambda: len(updates(coordinator, run.id)) >= 2)
            assert set(updates(coordinator, run.id)) == {1}
            until(lambda: reason(coordinator, run.id, "alpha") is not None)
            away = reason(coordinator, run.id, "alpha")
            assert away is not None and away.code == "not_approved"
            assert kinds(alpha) == {"question", "away"}
            checked = pubswap("client", "policy", "check", "--state", str(alpha))
            assert checked.returncode == 1 and "refused: not_approved" in checked.stdout
            done = pubswap("client", "approve", "--state", str(alpha), "--yes")
            assert done.returncode == 0, done.stderr
            until(lambda: 2 in updates(coordinator, run.id))
            assert reason(coordinator, run.id, "alpha") is None
            policy_path(alpha).write_text("max_response_tokens = 31\n")
            until(lambda: reason(coordinator, run.id, "alpha") is not None)
            away = reason(coordinator, run.id, "alpha")
            assert away is not None and away.code == "setting_not_allowed"
            assert away.detail.endswith("This organisation allows: at most 31.")
            status = read_status(alpha)
            until(lambda: "setting_not_allowed" in (read_status(alpha) or status).doing)
            so_far = len(updates(coordinator, run.id))
            until(lambda: len(updates(coordinator, run.id)) > so_far + 1)
            assert updates(coordinator, run.id)[-1] == 1
            api.move_run(run.id, paths.RUN_CANCEL)
