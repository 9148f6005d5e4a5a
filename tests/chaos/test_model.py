"""Short sequences of requests and crashes against a model of a run."""

from pathlib import Path

import pytest

from chaos.faults.model import run
from pubswap_server.runs.quorum import Arrivals

pytestmark = pytest.mark.full


def test_a_run_behaves_as_its_model(tmp_path: Path) -> None:
    """Duplicates, late and reordered requests, crashes inside and between them: same answers."""
    found = run(40, seed=1, folder=tmp_path)
    assert found["lost"] == 0, found["broken"][0]
    assert found["tried"] >= 40
    assert min(found["crashes"], found["killed_inside"], found["finished"]) >= 1


def test_a_coordinator_that_forgets_the_quorum_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that closes with its first update is another run than the model's."""
    monkeypatch.setattr(Arrivals, "closes", lambda arrivals, *_: bool(arrivals.arrived))
    assert run(100, seed=1, folder=tmp_path, shrink=False)["lost"] == 1
