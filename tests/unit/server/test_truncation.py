"""The mean of products cut to the run's rank, against dense float64 in numpy."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.adapter import (
    Adapter,
    AdapterFile,
    AdapterLayout,
    decode_adapter,
    encode_adapter,
    initial_adapter,
)
from pubswap_protocol.tensors.ranks import FullRankUpdate, at_rank, layout_of_update, leading
from pubswap_protocol.tensors.update_encoding import encode_update, view_update
from pubswap_server.aggregation.gram import compared
from pubswap_server.aggregation.truncation import Truncation, decomposed
from pubswap_server.aggregation.updates import Updates
from support.client import dense

RANK = 4
LAYOUT = AdapterLayout(
    tensors={
        "x.lora_A.weight": (RANK, 30),
        "x.lora_B.weight": (50, RANK),
        "y.lora_A.weight": (RANK, 60),
        "y.lora_B.weight": (3, RANK),
    }
)
MODULES = ("x", "y")
Dense = NDArray[np.float64]


def drawn(seed: int, layout: AdapterLayout = LAYOUT) -> Adapter:
    """Random factors."""
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=s).astype(np.float32) for n, s in layout.tensors.items()}


def product(adapter: Adapter, module: str) -> Dense:
    """B A in float64."""
    b, a = adapter[f"{module}.lora_B.weight"], adapter[f"{module}.lora_A.weight"]
    return b.astype(np.float64) @ a.astype(np.float64)


def padded(adapter: Adapter, before: Adapter, rank: int) -> Adapter:
    """The first directions of one adapter, and the remaining ones of another."""
    whole = {name: np.array(factor) for name, factor in before.items()}
    for name, factor in adapter.items():
        part = whole[name][:rank] if "lora_A" in name else whole[name][:, :rank]
        part[...] = factor[:rank] if "lora_A" in name else factor[:, :rank]
    return whole


def updates_of(
    folder: Path,
    before: Adapter,
    members: Sequence[Adapter],
    ranks: Sequence[int],
    weights: Sequence[float] | None = None,
) -> Updates:
    """Files of these ranks, opened as the coordinator opens them."""

    def place(data: bytes) -> Path:
        path = folder / digest_of(data)
        path.write_bytes(data)
        return path

    base = AdapterFile(place(encode_adapter(LAYOUT, before)), LAYOUT)
    sources = []
    for member, rank in zip(members, ranks, strict=True):
        data = encode_adapter(at_rank(LAYOUT, rank), leading(member, rank))
        sources.append(view_update(place(data), LAYOUT, "float32", base, 1))
    return Updates(
        members=tuple(f"m{n}" for n in range(len(members))),
        sources=tuple(sources),
        weights=tuple(weights or [1.0] * len(members)),
        previous=base,
        ranks=tuple(ranks),
    )


def cut(updates: Updates) -> tuple[Adapter, float]:
    """The result, and the part cut off."""
    truncation = Truncation(updates)
    data = b"".join(truncation.adapter())
    return decode_adapter(LAYOUT, data), truncation.left_out


@given(
    ranks=st.lists(st.integers(1, RANK), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_it_is_the_closest_of_the_rank_to_the_weighted_mean_of_the_products(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[int], seed: int, data: st.DataObject
) -> None:
    """For any ranks and weights; a direction that a member lacks is the round's own."""
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(ranks), max_size=len(ranks)))
    before, members = drawn(seed), [drawn(seed + 1 + n) for n in range(len(ranks))]
    folder = tmp_path_factory.mktemp("updates")
    found, left_out = cut(updates_of(folder, before, members, ranks, weights))
    wholes = [padded(m, before, r) for m, r in zip(members, ranks, strict=True)]
    lost = size = 0.0
    for module in MODULES:
        shares = np.array(weights) / sum(weights)
        mean = sum(w * product(m, module) for w, m in zip(shares, wholes, strict=True))
        wanted = dense.closest(mean, RANK)
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(product(found, module), wanted, atol=2e-6 * scale)
        lost += float(np.sum((mean - wanted) ** 2))
        size += float(np.sum(mean**2))
    assert left_out == pytest.approx(np.sqrt(lost / size), abs=1e-7)


def test_it_is_the_mean_itself_where_the_rank_suffices(tmp_path: Path) -> None:
    """With four members of rank 1 in a run of rank 4, nothing is cut off."""
    before = initial_adapter(LAYOUT, 7)
    members = [drawn(n) for n in range(RANK)]
    found, left_out = cut(updates_of(tmp_path, before, members, [1] * RANK))
    for module in MODULES:
        wanted = sum(product(leading(m, 1), module) for m in members) / RANK
        np.testing.assert_allclose(product(found, module), wanted, atol=1e-6)
    assert left_out < 1e-7


def test_its_factors_have_one_form(tmp_path: Path) -> None:
    """Rows of A are orthogonal, as long as the initial ones, strongest first, with a fixed sign."""
    found, _ = cut(updates_of(tmp_path, drawn(0), [drawn(1), drawn(2)], [RANK, 2]))
    a, b = found["x.lora_A.weight"], found["x.lora_B.weight"]
    np.testing.assert_allclose(a @ a.T, np.eye(RANK) / 3, atol=1e-6)
    assert all(row[np.abs(row).argmax()] > 0 for row in a)
    strengths = np.linalg.norm(b, axis=0)
    assert (np.diff(strengths) < 0).all()
    first = initial_adapter(at_rank(LAYOUT, 400), 1)["y.lora_A.weight"]
    assert np.linalg.norm(first, axis=1).mean() == pytest.approx(3**-0.5, abs=0.01)


def test_a_direction_that_nobody_used_stays_as_it_was(tmp_path: Path) -> None:
    """It is 0 in B and the round's row in A, so that it can be trained later."""
    before = initial_adapter(LAYOUT, 7)
    found, _ = cut(updates_of(tmp_path, before, [before, before], [RANK, 1]))
    assert all(np.array_equal(found[name], before[name]) for name in before)
    moved = padded(drawn(1), before, 1)
    found, _ = cut(updates_of(tmp_path, before, [moved, moved], [1, 1]))
    assert np.array_equal(found["x.lora_A.weight"][1:], before["x.lora_A.weight"][1:])
    assert not found["x.lora_B.weight"][:, 1:].any()


def test_a_lower_rank_counts_in_norms_as_what_it_moved(tmp_path: Path) -> None:
    """Drift, clipping and distances are as if its other directions had not moved."""
    before, member = drawn(0), drawn(1)
    updates = updates_of(tmp_path, before, [member, member], [1, RANK])
    (short, whole), flat = np.sqrt(np.diag(compared(updates, first=True)[0].matrix)), dense.flat
    assert short == pytest.approx(np.linalg.norm(flat(padded(member, before, 1)) - flat(before)))
    assert whole == pytest.approx(np.linalg.norm(flat(member) - flat(before)))


PROGRAM = """
import hashlib, sys
from pathlib import Path
from unit.server.test_truncation import *
tensors = {"x.lora_A.weight": (32, 700), "x.lora_B.weight": (900, 32)}
tensors |= {"y.lora_A.weight": (32, 200), "y.lora_B.weight": (900, 32)}  # fewer than the stacks'
large = AdapterLayout(tensors=tensors)
folder = Path(sys.argv[1])
files = []
for n in range(8):
    path = folder / str(n)
    path.write_bytes(encode_adapter(large, drawn(n, large)))
    files.append(AdapterFile(path, large))
made = Updates(tuple("abcdefg"), tuple(files[1:]), (1.0,) * 7, files[0])
print(hashlib.sha256(b"".join(Truncation(made).adapter())).hexdigest())
"""


@pytest.mark.full
def test_it_has_the_same_bits_again_with_as_many_threads(tmp_path: Path) -> None:
    """A round may be averaged again, also by another process."""

    def bits(threads: int) -> str:
        path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        env = os.environ | {"OPENBLAS_NUM_THREADS": str(threads), "PYTHONPATH": path}
        command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    assert bits(1) == bits(1)
    assert bits(2) == bits(2)


def many(folder: Path, count: int, side: int, rank: int) -> Updates:
    """`count` adapters of one layer of side x side, some of them equal."""
    tensors = {"x.lora_A.weight": (rank, side), "x.lora_B.weight": (side, rank)}
    layout, files = AdapterLayout(tensors=tensors), list[AdapterFile]()
    for seed in range(3):
        path = folder / f"{side}-{rank}-{seed}"
        path.write_bytes(encode_adapter(layout, drawn(seed, layout)))
        files.append(AdapterFile(path, layout))
    sources = tuple(files[n % 3] for n in range(count))
    names = tuple(f"m{n:04}" for n in range(count))
    return Updates(names, sources, tuple(1.0 + n % 5 for n in range(count)), files[0])


@pytest.mark.parametrize("count", [6, 7, 8, 60])
def test_the_matrix_itself_gives_what_the_stacks_of_its_factors_give(
    tmp_path: Path, count: int
) -> None:
    """For 30 x 30, up to 6 members of rank 4 and the round's own 28 directions are stacked."""
    updates = many(tmp_path, count, side=30, rank=4)
    left, values, right = decomposed(
        np.concatenate(
            [
                source.tensor("x.lora_B.weight") * np.float64(share)
                for share, source in zip(updates.shares, updates.sources, strict=True)
            ],
            axis=1,
        ),
        np.concatenate(
            [source.tensor("x.lora_A.weight").astype(np.float64) for source in updates.sources]
        ),
    )
    mean = (left * values) @ right
    wanted = (left[:, :4] * values[:4]) @ right[:4]
    np.testing.assert_allclose(wanted, dense.closest(mean, 4), atol=1e-13 * values[0])
    truncation = Truncation(updates)
    found = decode_adapter(updates.layout, b"".join(truncation.adapter()))
    np.testing.assert_allclose(product(found, "x"), wanted, atol=1e-6 * values[0])
    lost = np.sum(values[4:] ** 2) / np.sum(values**2)
    assert truncation.left_out == pytest.approx(np.sqrt(lost), rel=1e-6)


def peak_of(updates: Updates) -> int:
    """Peak bytes held in arrays."""
    tracemalloc.start()
    try:
        assert sum(map(len, Truncation(updates).adapter())) > 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_of_few_members_the_whole_matrix_is_never_formed(tmp_path: Path) -> None:
    """Memory is that of the stacks: a sixteenth of the matrix for a layer of 4,096 x 4,096."""
    assert peak_of(many(tmp_path, 2, side=4096, rank=2)) < 8 * 4096**2 / 16


def test_of_many_members_no_more_than_the_matrix_is_held(tmp_path: Path) -> None:
    """Memory grows until the stacks are as large as the matrix, and no further."""
    few, some, crowd = (peak_of(many(tmp_path, n, side=256, rank=32)) for n in (2, 60, 600))
    assert few < some < 8 * 8 * 256**2
    assert crowd < 1.2 * some


def test_a_lower_rank_travels_in_reduced_precision(tmp_path: Path) -> None:
    """It means the round's adapter plus the rounded difference in its first directions."""
    before, member = drawn(0), drawn(1)
    base = tmp_path / "base"
    base.write_bytes(encode_adapter(LAYOUT, before))
    sent = at_rank(LAYOUT, 2)
    body = encode_update(sent, "bfloat16", leading(member, 2), leading(before, 2))
    path = tmp_path / "update"
    path.write_bytes(body)
    view = view_update(path, LAYOUT, "bfloat16", AdapterFile(base, LAYOUT), 1)
    assert isinstance(view, FullRankUpdate)
    assert view.rank == 2
    for name in LAYOUT.tensors:
        wanted = padded(leading(member, 2), before, 2)[name]
        moved = np.abs(wanted - before[name])
        assert (np.abs(view.tensor(name) - wanted) <= 2.0**-8 * moved + 1e-5).all()


@pytest.mark.parametrize("rank", [1, 5])
def test_a_rank_out_of_the_range_is_refused_with_the_range(tmp_path: Path, rank: int) -> None:
    """Before the rest of the file is read."""
    layout = at_rank(LAYOUT, rank)
    path = tmp_path / "update"
    path.write_bytes(encode_adapter(layout, drawn(0, layout)))
    with pytest.raises(InvalidAdapter, match=rf"rank {rank}; the run takes 2 .* to 4"):
        layout_of_update(path, LAYOUT, 2)


def test_unequal_ranks_are_for_the_mean_of_products() -> None:
    """Any other rule would treat the directions that a member lacks as unchanged by it."""
    with pytest.raises(ValidationError, match="'svd' has it"):
        RunSettings(aggregation={"rule": {"name": "fedit", "min_rank": 1}})
    run = RunSettings(aggregation={"rule": {"name": "svd", "min_rank": 1}})
    assert (run.lora.rank, run.min_rank) == (32, 1)
    assert RunSettings.model_validate(run.model_dump(mode="json")) == run
    for wrong in (2, 0):
        with pytest.raises(ValidationError):
            RunSettings(lora={"rank": 1}, aggregation={"rule": {"name": "svd", "min_rank": wrong}})
