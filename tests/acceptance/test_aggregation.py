"""FFA-LoRA with real daemons."""

from pathlib import Path

import numpy as np
import pytest

from pubswap_protocol.tensors.adapter import decode_adapter, initial_adapter
from support.client import dense
from support.coordinator.processes import (
    federated_adapter,
)

pytestmark = pytest.mark.full


@pytest.mark.usefixtures("unmeasured")
def test_ffa_clients_train_and_send_b_alone(tmp_path: Path) -> None:
    """B changes, A stays as the seed made it, and less is sent than received.

    A client's other processes have that A too. A whole run, with exchanges, of clients with two
    processes ends within 1e-5 of one with single ones: only the order of sums differs.
    """
    overrides = {"aggregation.rule": "ffa", "grpo.learning_rate": 1e-5}
    view, data = federated_adapter(tmp_path / "run", overrides)
    _, two = federated_adapter(tmp_path / "two", overrides, more=["--processes", "2"])
    layout = view.model.layout
    first, final = initial_adapter(layout, view.settings.seed), decode_adapter(layout, data)
    for name, tensor in final.items():
        assert np.array_equal(tensor, first[name]) == ("lora_A" in name)
    assert np.allclose(dense.flat(final), dense.flat(decode_adapter(layout, two)), atol=1e-5)
    assert max(np.abs(t).max() for n, t in final.items() if "lora_B" in n) > 1e-5
    traffic = view.rounds[1].traffic
    assert traffic.adapters_up < 0.7 * traffic.adapters_down
