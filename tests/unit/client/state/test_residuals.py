"""The client's folder of residuals, and the valid shapes of a stack."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pubswap_client.daemon.session import check_possible
from pubswap_client.settings import ClientSettings
from pubswap_client.state.residuals import Residuals
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidAdapter, InvalidSettings
from pubswap_protocol.settings import AggregationSettings, RunSettings
from pubswap_protocol.tensors.adapter import (
    AdapterLayout,
    encode_adapter,
    modules,
    open_stack,
    sent_layout,
    stack_layout,
)

LAYOUT = AdapterLayout(tensors={"m.lora_A.weight": (2, 5), "m.lora_B.weight": (7, 2)})


def stack(rank: int, seed: int = 0) -> bytes:
    """A random stack of this rank."""
    rng = np.random.default_rng(seed)
    layout = stack_layout(LAYOUT, {"m.lora_A.weight": rank})
    tensors = {name: rng.normal(size=s).astype(np.float32) for name, s in layout.tensors.items()}
    return encode_adapter(layout, tensors)


class ResidualSource:
    """A fake coordinator that counts the requests for its blobs."""

    def __init__(self, *blobs: bytes) -> None:
        self.blobs = {digest_of(blob): blob for blob in blobs}
        self.asked: list[str] = []

    def blob(self, run: str, digest: str, max_bytes: int) -> memoryview:
        self.asked.append(digest)
        return memoryview(self.blobs[digest])


def residuals(api: Any, folder: Path) -> Residuals:
    """The residuals folder of a client whose run has LAYOUT."""
    settings = RunSettings(aggregation=AggregationSettings(rule="fedex"))
    run: Any = SimpleNamespace(id="run", model=SimpleNamespace(layout=LAYOUT), settings=settings)
    return Residuals(api, run, folder)


def test_residuals_are_fetched_once_and_come_in_the_order_asked_for(tmp_path: Path) -> None:
    """After a restart, a client takes them from its folder."""
    api = ResidualSource(stack(4, 1), stack(6, 2))
    first, second = api.blobs
    for wanted in ([first], [second, first], [first, second]):
        found = residuals(api, tmp_path).files(wanted, 2)
        ranks = [file.tensor("m.lora_A.weight").shape[0] for file in found]
        assert ranks == [{first: 4, second: 6}[digest] for digest in wanted]
    assert api.asked == [first, second]


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e30])
def test_a_residual_is_checked_like_an_update(tmp_path: Path, number: float) -> None:
    """Its digest is right, but its numbers would destroy the base model's weights."""
    layout = stack_layout(LAYOUT, {"m.lora_A.weight": 4})
    tensors = {name: np.zeros(size, np.float32) for name, size in layout.tensors.items()}
    tensors["m.lora_B.weight"][0, 0] = number
    api = ResidualSource(encode_adapter(layout, tensors))
    for _ in range(2):  # also from the folder, after a restart
        with pytest.raises(InvalidAdapter):
            residuals(api, tmp_path).files([*api.blobs], 1)


def test_residuals_that_the_task_no_longer_names_are_removed(tmp_path: Path) -> None:
    """So a coordinator that names new ones each time cannot fill the disk; a removed one is fetched
    again.
    """
    api = ResidualSource(*(stack(4, seed) for seed in range(3)))
    first, *others = api.blobs
    folder = residuals(api, tmp_path)
    for digest in (*others, first):
        (file,) = folder.files([digest], 1)
        assert [*tmp_path.iterdir()] == [file.path]
        assert digest_of(file.path.read_bytes()) == digest
    folder.files([], 0)
    assert not [*tmp_path.iterdir()]
    folder.files([first], 1)
    assert api.asked == [*others, first, first]


def test_a_damaged_residual_is_fetched_again(tmp_path: Path) -> None:
    """A file on disk is only used if its digest matches."""
    api = ResidualSource(stack(4))
    (digest,) = api.blobs
    residuals(api, tmp_path).files([digest], 1)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    (file,) = residuals(api, tmp_path).files([digest], 1)
    assert digest_of(file.path.read_bytes()) == digest
    assert api.asked == [digest, digest]


@pytest.mark.parametrize(
    "tensors",
    [
        {"m.lora_A.weight": (4, 5)},
        {"m.lora_B.weight": (7, 4)},
        {"m.lora_A.weight": (4, 5), "m.lora_B.weight": (7, 3)},
        {"m.lora_A.weight": (4, 6), "m.lora_B.weight": (7, 4)},
        {"m.lora_A.weight": (4, 5), "m.lora_B.weight": (7, 4), "n.lora_B.weight": (1, 1)},
    ],
)
def test_a_stack_that_does_not_fit_the_run_is_refused(
    tmp_path: Path, tensors: dict[str, tuple[int, int]]
) -> None:
    """Names and outer sizes must match, and both factors of a module must have the same rank."""
    layout = AdapterLayout(tensors=tensors)
    path = tmp_path / "stack.safetensors"
    zeros = {name: np.zeros(shape, np.float32) for name, shape in tensors.items()}
    path.write_bytes(encode_adapter(layout, zeros))
    with pytest.raises(InvalidAdapter):
        open_stack(path, LAYOUT)


def test_what_a_client_sends_depends_on_the_rule() -> None:
    """All factors, or only the B factors under FFA-LoRA."""
    assert sent_layout(LAYOUT, "fedex") == LAYOUT
    assert sent_layout(LAYOUT, "ffa").tensors == {"m.lora_B.weight": (7, 2)}
    assert modules(LAYOUT) == [("m.lora_A.weight", "m.lora_B.weight")]


@pytest.mark.parametrize(
    ("rule", "engine", "alone", "fits"),
    [
        ("fedit", "vllm", False, True),
        ("fedex", "transformers", True, True),
        ("fedex", "vllm", True, False),
        ("fedex", "transformers", False, False),
    ],
)
def test_a_rule_that_changes_the_base_model_is_refused_if_it_has_copies(
    tmp_path: Path, rule: Any, engine: Any, alone: bool, fits: bool
) -> None:
    """vLLM and other processes have copies of the base model."""
    run = RunSettings(aggregation=AggregationSettings(rule=rule))
    client = ClientSettings(state=tmp_path, engine=engine)
    if fits:
        check_possible(run, client, alone)
        return
    with pytest.raises(InvalidSettings, match="one process"):
        check_possible(run, client, alone)
