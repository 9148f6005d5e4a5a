"""Whole runs: real uvicorn, real daemons, the shipped model."""

from pathlib import Path

import numpy as np
import pytest

from pubswap_protocol.digests import digest_of
from pubswap_protocol.tensors.adapter import decode_adapter
from support.coordinator.processes import federated_adapter

pytestmark = pytest.mark.usefixtures("unmeasured")


@pytest.mark.parametrize(
    ("method", "strategy"),
    [
        ("pubswap", "keep"),
        pytest.param("pubswap", "random", marks=pytest.mark.full),
        pytest.param("fedavg", "keep", marks=pytest.mark.full),
        pytest.param("fedprox", "keep", marks=pytest.mark.full),
    ],
)
def test_two_clients_train_two_rounds(tmp_path: Path, method: str, strategy: str) -> None:
    """The run finishes, with two updates a round and exchanges only under PubSwap."""
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


@pytest.mark.full
def test_same_seed_gives_the_same_adapter_bit_for_bit(tmp_path: Path) -> None:
    """Two runs with the same seed agree in every bit, in whichever order the clients start."""
    _, first = federated_adapter(tmp_path / "first", {}, order=("alpha", "beta"))
    _, second = federated_adapter(tmp_path / "second", {}, order=("beta", "alpha"))
    _, other = federated_adapter(tmp_path / "other", {"seed": 8})
    assert first == second
    assert first != other


@pytest.mark.full
def test_clients_of_two_processes_train_what_clients_of_one_do(tmp_path: Path) -> None:
    """Whole runs end within 1e-5 of each other: sums are in another order, and nothing else."""
    overrides = {"grpo.learning_rate": 1e-5}
    view, one = federated_adapter(tmp_path / "one", overrides)
    _, two = federated_adapter(tmp_path / "two", overrides, more=["--processes", "2"])
    layout = view.model.layout
    wanted, found = decode_adapter(layout, one), decode_adapter(layout, two)
    moved = max(float(np.abs(array).max()) for name, array in wanted.items() if "lora_B" in name)
    assert moved > 1e-5
    assert max(float(np.abs(wanted[name] - found[name]).max()) for name in wanted) <= 1e-5
