"""Updates in reduced precision: round trips, bounds, and refusals."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.messages import CreateRun
from pubswap_protocol.model import ModelCard
from pubswap_protocol.settings import Precision, RunSettings, WireSettings
from pubswap_protocol.tensors.adapter import (
    LARGEST,
    Adapter,
    AdapterFile,
    AdapterLayout,
    encode_adapter,
)
from pubswap_protocol.tensors.safetensors_header import MAX_TENSORS, read_header
from pubswap_protocol.tensors.update_encoding import (
    RebuiltAdapter,
    encode_update,
    from_bfloat16,
    largest_update,
    open_update,
    to_bfloat16,
    view_update,
)

LAYOUT = AdapterLayout(tensors={"x.lora_A.weight": (4, 9), "x.lora_B.weight": (7, 4)})
FLOAT32 = st.floats(width=32, allow_nan=False, min_value=-(2.0**100), max_value=2.0**100)


def adapter(seed: int, size: float = 1.0, layout: AdapterLayout = LAYOUT) -> Adapter:
    """Normally distributed factors."""
    rng = np.random.default_rng(seed)
    return {
        name: (size * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in layout.tensors.items()
    }


def run_in(precision: Precision) -> RunSettings:
    return RunSettings(wire=WireSettings(precision=precision))


def view(folder: Path, precision: Precision, body: bytes, base: Adapter) -> Adapter:
    """The adapter that the coordinator reads from an update."""
    update, start = folder / "update", folder / "start"
    update.write_bytes(body)
    start.write_bytes(encode_adapter(LAYOUT, base))
    found = view_update(update, LAYOUT, precision, AdapterFile(start, LAYOUT))
    return {name: found.tensor(name) for name in LAYOUT.tensors}


@given(st.lists(FLOAT32, min_size=1, max_size=20))
def test_bfloat16_is_the_nearest_with_ties_to_even(numbers: list[float]) -> None:
    """No neighbouring value is nearer, and a tie goes to the even one."""
    exact = np.array(numbers, np.float32)
    bits = to_bfloat16(exact)
    for number, own in zip(exact.astype(np.float64), bits, strict=True):
        around = np.array([int(own) + step & 0xFFFF for step in (-1, 0, 1)], np.uint16)
        values = from_bfloat16(around).astype(np.float64)
        usable = np.isfinite(values)
        distance = np.abs(values[usable] - number)
        assert distance[list(around[usable]).index(own)] == distance.min()
        if (distance == distance.min()).sum() > 1 and number:
            assert own % 2 == 0


def test_an_update_comes_back_as_base_plus_difference(tmp_path: Path) -> None:
    """Within the rounding of each number, and the same bytes every time."""
    base, trained = adapter(1), adapter(2)
    body = encode_update(LAYOUT, "bfloat16", trained, base)
    found = view(tmp_path, "bfloat16", body, base)
    for name in LAYOUT.tensors:
        moved = np.abs(trained[name] - base[name])
        assert (np.abs(found[name] - trained[name]) <= 2.0**-8 * moved + 1e-6).all()
    assert encode_update(LAYOUT, "bfloat16", trained, base) == body
    update = open_update(tmp_path / "update", LAYOUT, "bfloat16")
    assert update.digest() == digest_of(body)
    assert len(body) == largest_update(LAYOUT, run_in("bfloat16"))


def test_rows_are_those_of_the_tensor(tmp_path: Path) -> None:
    """Reading some rows gives the same bits as reading all, and the base may have more tensors."""
    (tmp_path / "base").write_bytes(encode_adapter(LAYOUT, adapter(1)))
    base = AdapterFile(tmp_path / "base", LAYOUT)
    for name, shape in LAYOUT.tensors.items():
        sent = AdapterLayout(tensors={name: shape})
        (tmp_path / "update").write_bytes(encode_update(sent, "bfloat16", adapter(2), adapter(1)))
        found = view_update(tmp_path / "update", sent, "bfloat16", base)
        assert isinstance(found, RebuiltAdapter)
        assert found.layout == sent
        assert np.array_equal(found.rows(name, 1, 3), found.tensor(name)[1:3])


def test_float32_is_the_adapter_itself(tmp_path: Path) -> None:
    """The base does not matter."""
    body = encode_update(LAYOUT, "float32", adapter(2), adapter(1))
    assert body == encode_adapter(LAYOUT, adapter(2))
    found = view(tmp_path, "float32", body, adapter(1))
    assert all(np.array_equal(found[name], adapter(2)[name]) for name in LAYOUT.tensors)
    (tmp_path / "update").write_bytes(body)
    assert isinstance(open_update(tmp_path / "update", LAYOUT, "float32"), AdapterFile)


def test_rounding_once_has_no_bias(tmp_path: Path) -> None:
    """Over 100 rounds of 4 clients, the sent sum stays within a thousandth of the true one."""
    base = {name: np.zeros(shape, np.float32) for name, shape in LAYOUT.tensors.items()}
    true = {name: np.zeros(shape) for name, shape in LAYOUT.tensors.items()}
    sent = {name: np.zeros(shape) for name, shape in LAYOUT.tensors.items()}
    for number in range(400):
        moved = adapter(number)
        steady = {name: tensor + np.float32(1.003) for name, tensor in moved.items()}
        body = encode_update(LAYOUT, "bfloat16", steady, base)
        found = view(tmp_path, "bfloat16", body, base)
        for name in LAYOUT.tensors:
            true[name] += steady[name]
            sent[name] += found[name]
    whole = [np.concatenate([total[name].ravel() for name in total]) for total in (sent, true)]
    assert np.linalg.norm(whole[0] - whole[1]) < 1e-3 * np.linalg.norm(whole[1])


def test_reduced_updates_of_a_real_layout_are_a_half() -> None:
    """Qwen2.5-0.5B, all linear layers, rank 32."""
    shapes = {
        **{"q_proj": (896, 896), "k_proj": (896, 128), "v_proj": (896, 128), "o_proj": (896, 896)},
        **{"gate_proj": (896, 4864), "up_proj": (896, 4864), "down_proj": (4864, 896)},
    }
    tensors: dict[str, tuple[int, int]] = {}
    for layer in range(24):
        for name, (wide, tall) in shapes.items():
            path = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{path}.lora_A.weight"] = (32, wide)
            tensors[f"{path}.lora_B.weight"] = (tall, 32)
    layout = AdapterLayout(tensors=tensors)
    assert largest_update(layout, run_in("bfloat16")) <= 0.51 * layout.file_bytes


@pytest.mark.parametrize("value", [np.nan, np.inf, 2 * LARGEST])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_that_diverged_sends_nothing(precision: Precision, value: float) -> None:
    """The client itself refuses, and names the tensor."""
    trained = adapter(1)
    trained["x.lora_B.weight"][2, 1] = value
    with pytest.raises(InvalidAdapter, match=r"x\.lora_B\.weight"):
        encode_update(LAYOUT, precision, trained, adapter(2))


def spoilt(tensor: str, value: bytes) -> bytes:
    """An update with the first number of a tensor replaced."""
    body = bytearray(BODY)
    specs, start = read_header(bytes(body))
    begin = start + specs[tensor].begin
    body[begin : begin + len(value)] = value
    return bytes(body)


def test_a_run_whose_updates_have_too_many_or_too_long_names_is_not_created(
    tiny_qwen3: Path, card_of: Callable[[Path], ModelCard]
) -> None:
    """Such a run could never accept an update, or nobody could read its final adapter."""
    most = MAX_TENSORS // 2
    for pairs, name, fits in ((most, "", True), (most + 1, "", False), (most, "x" * 180, False)):
        tensors = {f"{name}{n}.lora_{side}.weight": (1, 1) for n in range(pairs) for side in "AB"}
        card = card_of(tiny_qwen3).model_copy(update={"layout": AdapterLayout(tensors=tensors)})
        with nullcontext() if fits else pytest.raises(ValueError, match="choose fewer"):
            CreateRun(name="run", settings=RunSettings(), model=card)
            read_header(card.layout.header + bytes(4 * card.layout.parameters))


def float32(value: float) -> bytes:
    """The number's four bytes."""
    return np.float32(value).tobytes()


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e30])
def test_numbers_out_of_range_are_refused(tmp_path: Path, value: float) -> None:
    """Numbers that are not finite, and changes larger than any training makes."""
    path = tmp_path / "update"
    path.write_bytes(spoilt("x.lora_A.weight", float32(value)[2:]))
    update = open_update(path, LAYOUT, "bfloat16")
    with pytest.raises(InvalidAdapter, match=r"x\.lora_A\.weight"):
        update.digest()


def test_the_largest_update_that_is_made_is_taken(tmp_path: Path) -> None:
    """Client and coordinator use the same bound."""
    base = {name: np.zeros(shape, np.float32) for name, shape in LAYOUT.tensors.items()}
    far = {name: np.full(shape, LARGEST, np.float32) for name, shape in LAYOUT.tensors.items()}
    path = tmp_path / "update"
    path.write_bytes(encode_update(LAYOUT, "bfloat16", far, base))
    open_update(path, LAYOUT, "bfloat16").digest()


def with_header(body: bytes, change: str, by: str) -> bytes:
    """The file with this change in the text of its header."""
    length = int.from_bytes(body[:8], "little")
    text = body[8 : 8 + length].decode().rstrip().replace(change, by)
    raw = text.encode() + b" " * (-len(text) % 8)
    return len(raw).to_bytes(8, "little") + raw + body[8 + length :]


BODY = encode_update(LAYOUT, "bfloat16", adapter(1), adapter(2))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (encode_adapter(LAYOUT, adapter(1)), "is F32"),
        (BODY + b"x", "bytes, but its header says"),
        (BODY[:-1], "bytes, but its header says"),
        (with_header(BODY, '"BF16"', '"F16"'), "is F16"),
        (with_header(BODY, "[4,9]", "[9,4]"), r"is BF16 \(9, 4\)"),
        (with_header(BODY, "x.lora_B.weight", "x.lora_B.weighs"), "1 tensors are missing"),
        (with_header(BODY, ":", ": "), "canonical"),
        (b"", "shorter than"),
    ],
)
def test_files_that_are_not_exactly_the_run_s_are_refused(
    tmp_path: Path, body: bytes, why: str
) -> None:
    """Names, dtypes, shapes, size and every byte of the header must match."""
    path = tmp_path / "update"
    path.write_bytes(body)
    with pytest.raises(InvalidAdapter, match=why):
        open_update(path, LAYOUT, "bfloat16")


def test_the_file_is_plain_safetensors() -> None:
    """Another reader finds BF16 tensors of the adapter's names and shapes."""
    header = json.loads(BODY[8 : 8 + int.from_bytes(BODY[:8], "little")])
    assert {name: (each["dtype"], *each["shape"]) for name, each in header.items()} == {
        name: ("BF16", *shape) for name, shape in LAYOUT.tensors.items()
    }
