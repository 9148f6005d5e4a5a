"""A member with a verifier that nobody else has, in a federation of real processes."""

from collections import defaultdict
from pathlib import Path

import pytest

from pubswap_client.consent.ledger import Entry, entries, ledger_folder
from pubswap_client.state.history import HISTORY, RoundFigures
from support.coordinator.processes import (
    ONE_THREAD,
    client_command,
    create_run,
    enroll,
    serve,
    start,
    wait_finished,
)
from support.forked import ForkedProcesses
from support.wheels import installed, project

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("unmeasured")]

SCORER = """
from hashlib import sha256
def score(response, *, answer, **_):
    return sha256(response.encode()).digest()[0] / 256
"""
FIGURES = ("reward", "loss", "kl", "tokens_per_second", "memory_bytes")


def sent(state: Path) -> dict[str, list[Entry]]:
    """A member's requests by kind."""
    found = defaultdict(list)
    for entry in entries(ledger_folder(state)):
        found[entry.kind].append(entry)
    return found


def test_its_scores_train_it_and_no_figure_of_them_leaves(tmp_path: Path) -> None:
    """Its updates are accepted; a peer on the run's verifier alone reports all of its steps."""
    wheel = project(tmp_path / "mine", "mine", {"mine.py": SCORER}, {"mine": "mine:score"})
    site = installed(wheel, tmp_path / "installed")
    with (
        ForkedProcesses(tmp_path / "logs") as processes,
        ForkedProcesses(tmp_path / "own-logs", ["support.wheels", str(site)]) as own,
    ):
        coordinator = serve(processes, tmp_path)
        with coordinator.api:
            run = create_run(coordinator, {"rounds": 1})
            alpha, beta = (enroll(coordinator, run, name) for name in ("alpha", "beta"))
            own.start("alpha", client_command(alpha, 3, "plugin:mine"), ONE_THREAD)
            processes.start("beta", client_command(beta, 4), ONE_THREAD)
            start(coordinator, run)
            view = wait_finished(coordinator, run)
    assert view.rounds[1].updates == 2
    bodies = {state: sent(state) for state in (alpha, beta)}
    for state, found in bodies.items():
        (update,) = found["update"]
        assert isinstance(update.content, dict)
        metrics = update.content["metrics"]
        assert isinstance(metrics, dict) and isinstance(metrics["step_rewards"], list)
        private, public = metrics["step_rewards"]
        assert public is not None
        assert (private is None) == (state == alpha)
        assert (metrics["seconds"] is None) == (state == alpha)
    for beat in bodies[alpha]["heartbeat"]:
        assert isinstance(beat.content, dict)
        shown = {name for name in FIGURES if beat.content.get(name) is not None}
        assert not shown or (beat.content["step"] == 2 and "memory_bytes" not in shown)
    kept = RoundFigures.model_validate_json((alpha / HISTORY).read_text().splitlines()[0])
    assert kept.reward is not None  # here it is known, and depends on the member's own scores
    assert f'"reward":{kept.reward}' not in "".join(
        entry.model_dump_json() for found in bodies[alpha].values() for entry in found
    )
