"""The FedIT mean and the drift, against dense numpy."""

import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pubswap_protocol.adapter import (
    Adapter,
    AdapterFile,
    AdapterLayout,
    decode_adapter,
    encode_adapter,
)
from pubswap_server.aggregation import SLICE, FedIT, drift

LAYOUT = AdapterLayout(tensors={"x.lora_A.weight": (4, 30), "x.lora_B.weight": (50, 4)})


def adapters(layout: AdapterLayout, count: int) -> list[Adapter]:
    """Random adapters."""
    rng = np.random.default_rng(0)
    return [
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in layout.tensors.items()}
        for _ in range(count)
    ]


def on_disk(folder: Path, layout: AdapterLayout, made: list[Adapter]) -> list[AdapterFile]:
    """The adapters as files."""
    files = []
    for number, adapter in enumerate(made):
        path = folder / f"{number}.safetensors"
        path.write_bytes(encode_adapter(layout, adapter))
        files.append(AdapterFile(path, layout))
    return files


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [5.0, 1.0, 2.0]])
def test_the_mean_is_that_of_a_and_of_b_separately(tmp_path: Path, weights: list[float]) -> None:
    """Each tensor is the weighted mean of the clients' tensors, rounded once."""
    made = adapters(LAYOUT, 3)
    data = b"".join(FedIT().aggregate(on_disk(tmp_path, LAYOUT, made), weights))
    mean = decode_adapter(LAYOUT, data)
    for name in LAYOUT.tensors:
        stacked = np.stack([adapter[name].astype(np.longdouble) for adapter in made])
        expected = np.average(stacked, axis=0, weights=weights).astype(np.float32)
        assert np.allclose(mean[name], expected, rtol=0, atol=1e-7)
    assert data == encode_adapter(LAYOUT, mean)


def test_the_mean_of_equal_adapters_is_that_adapter(tmp_path: Path) -> None:
    """Nothing is lost to rounding where nothing changed."""
    (one,) = adapters(LAYOUT, 1)
    files = on_disk(tmp_path, LAYOUT, [one] * 4)
    assert b"".join(FedIT().aggregate(files, [1.0] * 4)) == encode_adapter(LAYOUT, one)


@pytest.mark.parametrize("slice_", [1, 7, SLICE])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_drift_is_the_distance_between_clients_and_from_their_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, slice_: int
) -> None:
    """Against flat vectors and every pair, however narrow the slices are."""
    monkeypatch.setattr("pubswap_server.aggregation.SLICE", slice_)
    made = adapters(LAYOUT, count)
    measured = drift(on_disk(tmp_path, LAYOUT, made))
    flat = [np.concatenate([a[n].ravel() for n in sorted(a)]).astype(float) for a in made]
    pairs = [float(np.linalg.norm(x - y)) for x, y in itertools.combinations(flat, 2)]
    assert measured.pairwise == pytest.approx(np.mean(pairs) if pairs else 0.0)
    centre = np.mean(flat, axis=0)
    assert measured.from_mean == pytest.approx(np.mean([np.linalg.norm(x - centre) for x in flat]))


def test_memory_does_not_grow_with_the_adapters_or_the_clients(tmp_path: Path) -> None:
    """Averaging eight files of 16 MiB allocates a few slices, not the files."""
    layout = AdapterLayout(tensors={"x.lora_A.weight": (4, SLICE)})
    adapter = {"x.lora_A.weight": np.ones((4, SLICE), np.float32)}
    files = on_disk(tmp_path, layout, [adapter] * 8)
    tracemalloc.start()
    total = sum(len(part) for part in FedIT().aggregate(files, [1.0] * 8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == layout.file_bytes
    assert peak < 10 * 4 * SLICE < 8 * layout.file_bytes / 2


def test_measuring_drift_holds_no_more_for_more_clients(tmp_path: Path) -> None:
    """Sixteen clients take about the memory of two."""
    layout = AdapterLayout(tensors={"x.lora_A.weight": (2, SLICE)})
    files = on_disk(tmp_path, layout, [{"x.lora_A.weight": np.ones((2, SLICE), np.float32)}])
    peaks = []
    for count in (2, 16):
        tracemalloc.start()
        drift(files * count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
