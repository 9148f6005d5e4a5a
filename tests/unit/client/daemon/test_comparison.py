"""Comparing adapters: their order, intervals, and differences paired by problem."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from pubswap_client.daemon.comparison import (
    adapter_names,
    compared,
    half_width,
    table,
)
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.tensors.peft_folder import WEIGHTS


def test_a_difference_is_paired_by_problem_with_all_beside_it() -> None:
    """The reference is `all` of the same folder only; the figures match numpy's."""
    rng = np.random.default_rng(1)
    draws = {
        name: rng.integers(0, 2, 50).astype(float).tolist()
        for name in ("round-1/all", "round-1/without-a", "round-2/without-a")
    }
    found = {each.adapter: each for each in compared(draws)}
    assert found["round-1/all"].difference is found["round-2/without-a"].difference is None
    paired = found["round-1/without-a"].difference
    gains = np.array(draws["round-1/without-a"]) - draws["round-1/all"]
    assert paired is not None and paired.reference == "round-1/all"
    assert paired.mean == pytest.approx(gains.mean())
    assert paired.half_width == pytest.approx(1.96 * gains.std(ddof=1) / math.sqrt(50))
    assert (paired.better, paired.worse) == ((gains > 0).sum(), (gains < 0).sum())
    assert found["round-1/all"].pass_at_1 == pytest.approx(np.mean(draws["round-1/all"]))


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    """It covers the mean in about 95 % of 2,000 draws."""
    rng = np.random.default_rng(2)
    draws = (rng.random((2000, 100)) < 0.3).astype(float)
    held = [abs(each.mean() - 0.3) <= (half_width(each.tolist()) or 0) for each in draws]
    assert 0.925 < np.mean(held) < 0.97


def test_one_problem_has_no_interval() -> None:
    """The command still prints its table."""
    found = compared({"all": [1.0], "without-a": [0.0]})
    assert found[1].half_width is None
    assert found[1].difference is not None and found[1].difference.half_width is None
    console = Console(file=io.StringIO(), width=100)
    console.print(table(found))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1.000" in said and "-1.000" in said and "test problems: 1" in said


def test_folders_are_found_at_any_depth_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Round 10 comes after round 9; a folder that is itself an adapter counts; without any adapter
    it is an error.
    """
    names = ["round-9/all", "round-10/all", "round-10/without-b"]
    for name in [*names, "all"]:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / WEIGHTS).touch()
    assert adapter_names(tmp_path) == ["all", *names]
    assert adapter_names(tmp_path / "all") == ["."]
    (tmp_path / "none").mkdir()
    for folder in (tmp_path / "none", tmp_path / "nowhere"):
        with pytest.raises(InvalidSettings, match="pubswap admin contributions"):
            adapter_names(folder)
