"""An adapter fetched from the coordinator and written to a folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pubswap_client.operator.adapter_folder import take_adapter
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import AdapterLayout, encode_adapter
from support.client.results import CARD


@pytest.mark.parametrize(("number", "other"), [(np.nan, ""), (0.0, "other.")])
def test_an_adapter_that_is_not_the_runs_is_not_written(
    number: float, other: str, tmp_path: Path
) -> None:
    """Other tensors and numbers that are not finite are refused, even if the coordinator gives
    them.
    """
    tensors = {f"{other}{name}": shape for name, shape in CARD.layout.tensors.items()}
    arrays = {name: np.full(shape, number, np.float32) for name, shape in tensors.items()}
    given = encode_adapter(AdapterLayout(tensors=tensors), arrays)
    api: Any = SimpleNamespace(adapter_of_round=lambda *_: (1, given))
    run: Any = SimpleNamespace(id="r", name="r", model=CARD, settings=RunSettings())
    with pytest.raises(InvalidAdapter):
        take_adapter(api, run, "final", tmp_path / "out")
    assert not any(tmp_path.iterdir())
