"""Whole runs: real uvicorn, real daemons, the shipped model."""

from pathlib import Path

import pytest

from pubswap_protocol.adapter import digest_of
from support.processes import federated_adapter


@pytest.mark.parametrize(
    ("method", "strategy"),
    [("pubswap", "keep"), ("pubswap", "random"), ("fedavg", "keep"), ("fedprox", "keep")],
)
def test_two_clients_train_two_rounds(tmp_path: Path, method: str, strategy: str) -> None:
    """Each method finishes, with two updates a round and exchanges only under PubSwap."""
    view, adapter = federated_adapter(
        tmp_path / "run", {"method": method, "swap.strategy": strategy}
    )
    rounds = view.rounds[1:]
    assert [summary.updates for summary in rounds] == [2, 2]
    assert [len(summary.swaps) for summary in rounds] == ([1, 1] if method == "pubswap" else [0, 0])
    assert view.rounds[-1].adapter == digest_of(adapter)
    assert len({summary.adapter for summary in view.rounds}) == 3
    for summary in rounds:
        assert summary.traffic.adapters_up >= 2 * len(adapter)
        assert (summary.traffic.responses_up > 0) == (method == "pubswap")
        assert summary.drift is not None
        assert summary.drift.pairwise > 0


def test_same_seed_gives_the_same_adapter_bit_for_bit(tmp_path: Path) -> None:
    """Two runs with the same seed agree in every bit, in whichever order the clients start."""
    _, first = federated_adapter(tmp_path / "first", {}, order=("alpha", "beta"))
    _, second = federated_adapter(tmp_path / "second", {}, order=("beta", "alpha"))
    _, other = federated_adapter(tmp_path / "other", {"seed": 8})
    assert first == second
    assert first != other
