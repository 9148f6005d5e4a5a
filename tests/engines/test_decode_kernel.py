"""The decode kernel in Triton's interpreter, against a float64 softmax."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

CASES = {
    "grouped heads": (3, 4, 2, 16, 277),
    "no power of two in a group or the width": (2, 6, 2, 24, 130),
    "many rows": (64, 16, 8, 16, 66),
    "many parts": (1, 3, 1, 128, 650),
    "one key": (2, 4, 4, 64, 1),  # most parts are empty
    "wide heads": (2, 2, 1, 256, 90),
}
"""Rows, heads, heads of keys, width and used tokens."""
ROOM = 40  # tokens after the used ones
SCALE = 0.2

# Triton looks at the environment when it is imported, so the kernel runs in a process of its own.
ATTEND = """
import sys, torch
from pubswap_client.rollout.decode_kernel import attend
torch.save([attend(*inputs, SCALE) for inputs in torch.load(sys.argv[1])], sys.argv[2])
""".replace("SCALE", str(SCALE))


def inputs_of(
    rows: int, heads: int, key_heads: int, width: int, used: int
) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, each row's first key, and the last one; other keys are NaN."""
    torch.manual_seed(used)
    query = torch.randn(rows, heads, 1, width)
    cache = torch.randn(2, rows, key_heads, used + ROOM, width)
    first, last = torch.randint(0, max(1, used // 2), (rows,)), torch.tensor([used - 1])
    key, value = cache.where(seen(cache, first, last), torch.nan)
    return query, key, value, first, last


def seen(cache: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The keys that each row sees: (B, 1, S, 1)."""
    columns = torch.arange(cache.shape[-2])
    return ((columns >= first[:, None]) & (columns <= last))[:, None, :, None]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The kernel's output for each case."""
    folder: Path = tmp_path_factory.mktemp("kernel")
    torch.save([inputs_of(*case) for case in CASES.values()], folder / "in.pt")
    subprocess.run(
        [sys.executable, "-c", ATTEND, str(folder / "in.pt"), str(folder / "out.pt")],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        check=True,
    )
    return dict(zip(CASES, torch.load(folder / "out.pt"), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_each_row_attends_to_its_own_keys_alone(
    case: str, outputs: dict[str, torch.Tensor]
) -> None:
    """Padding before them and room after them have no effect, even as NaN."""
    query, *cache, first, last = inputs_of(*CASES[case])
    visible = seen(cache[0], first, last)
    group = query.shape[1] // cache[0].shape[1]
    key, value = (
        whole.where(visible, 0.0).double().repeat_interleave(group, dim=1) for whole in cache
    )
    scores = query.double() @ key.transpose(2, 3) * SCALE
    scores = scores.masked_fill(~visible.transpose(2, 3), -torch.inf)
    exact = (scores.softmax(dim=-1) @ value).transpose(1, 2)
    assert outputs[case].shape == exact.shape
    assert torch.allclose(outputs[case].double(), exact, atol=1e-5)
