"""Updates in reduced precision: round trips, bounds, error feedback, and refusals."""

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
    SCALE,
    RebuiltAdapter,
    ReducedFile,
    encode_update,
    from_bfloat16,
    from_int8,
    largest_update,
    open_update,
    to_bfloat16,
    to_int8,
    view_update,
)

LAYOUT = AdapterLayout(tensors={"x.lora_A.weight": (4, 9), "x.lora_B.weight": (7, 4)})
REDUCED: list[Precision] = ["bfloat16", "int8"]
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


@given(st.integers(0, 1000), st.sampled_from([(3, 8), (8, 3), (1, 1), (1, 8), (8, 1), (5, 5)]))
def test_int8_is_within_half_a_step_of_its_direction(seed: int, shape: tuple[int, int]) -> None:
    """Each row of a wide matrix, or column of a tall one, has its own scale."""
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    array[0] *= 1000
    levels, scales = to_int8(array)
    assert scales.shape == ((shape[0], 1) if shape[0] <= shape[1] else (1, shape[1]))
    error = np.abs(from_int8(levels, scales).astype(np.float64) - array)
    assert (error <= scales * 0.5001).all()
    assert np.abs(levels.astype(int)).max() == 127


@pytest.mark.parametrize("value", [0.0, 1e-45])
def test_int8_of_zero_is_zero(value: float) -> None:
    """Zeros, or numbers too small for a scale, have level 0 and give no NaN."""
    levels, scales = to_int8(np.full((2, 3), value, np.float32))
    assert not from_int8(levels, scales).any()


@pytest.mark.parametrize("precision", REDUCED)
def test_an_update_comes_back_as_base_plus_difference(tmp_path: Path, precision: Precision) -> None:
    """The residual is small, and sent plus residual is exactly the difference."""
    base, trained = adapter(1), adapter(2)
    body, left = encode_update(LAYOUT, precision, trained, base, {})
    found = view(tmp_path, precision, body, base)
    step = {"bfloat16": 2.0**-8, "int8": 1 / 127}[precision]
    for name in LAYOUT.tensors:
        moved = np.abs(trained[name] - base[name])
        assert np.abs(found[name] - trained[name]).max() <= step * moved.max()
        assert np.allclose(found[name] + left[name], trained[name], atol=1e-6)
    assert encode_update(LAYOUT, precision, trained, base, {})[0] == body
    update = open_update(tmp_path / "update", LAYOUT, precision)
    assert update.digest() == digest_of(body)
    assert len(body) == largest_update(LAYOUT, run_in(precision))


@pytest.mark.parametrize("precision", REDUCED)
def test_rows_are_those_of_the_tensor(tmp_path: Path, precision: Precision) -> None:
    """Reading some rows gives the same bits as reading all, and the base may have more tensors."""
    (tmp_path / "base").write_bytes(encode_adapter(LAYOUT, adapter(1)))
    base = AdapterFile(tmp_path / "base", LAYOUT)
    for name, shape in LAYOUT.tensors.items():
        sent = AdapterLayout(tensors={name: shape})
        body, _ = encode_update(sent, precision, adapter(2), adapter(1), {})
        (tmp_path / "update").write_bytes(body)
        found = view_update(tmp_path / "update", sent, precision, base)
        assert isinstance(found, RebuiltAdapter)
        assert found.layout == sent
        assert np.array_equal(found.rows(name, 1, 3), found.tensor(name)[1:3])


@pytest.mark.parametrize("precision", REDUCED)
def test_an_update_of_rank_1_comes_back_too(tmp_path: Path, precision: Precision) -> None:
    """Whole and by rows, although its single scale could be a row's or a column's."""
    layout = AdapterLayout(tensors={"x.lora_A.weight": (1, 9), "x.lora_B.weight": (7, 1)})
    base, trained = adapter(1, layout=layout), adapter(2, layout=layout)
    (tmp_path / "base").write_bytes(encode_adapter(layout, base))
    body, left = encode_update(layout, precision, trained, base, {})
    (tmp_path / "update").write_bytes(body)
    found = view_update(
        tmp_path / "update", layout, precision, AdapterFile(tmp_path / "base", layout)
    )
    for name, (rows, _) in layout.tensors.items():
        assert np.allclose(found.tensor(name) + left[name], trained[name], atol=1e-6)
        parts = [found.rows(name, row, row + 1) for row in range(rows)]
        assert np.array_equal(np.concatenate(parts), found.tensor(name))


def test_float32_is_the_adapter_itself(tmp_path: Path) -> None:
    """There is no residual, and the base does not matter."""
    body, left = encode_update(LAYOUT, "float32", adapter(2), adapter(1), adapter(3))
    assert (body, left) == (encode_adapter(LAYOUT, adapter(2)), {})
    found = view(tmp_path, "float32", body, adapter(1))
    assert all(np.array_equal(found[name], adapter(2)[name]) for name in LAYOUT.tensors)
    (tmp_path / "update").write_bytes(body)
    assert isinstance(open_update(tmp_path / "update", LAYOUT, "float32"), AdapterFile)


def sent_and_true(folder: Path, precision: Precision, feedback: bool) -> tuple[float, float]:
    """The distance between sent and true sums after 50 rounds, and one rounding step.

    Each round moves every number by the same small step, and one number of each direction back and
    forth by a large one: the small step is below half a level, and rounds to 0.
    """
    drift = {name: np.full(shape, 1e-3, np.float32) for name, shape in LAYOUT.tensors.items()}
    base = {name: np.zeros(shape, np.float32) for name, shape in LAYOUT.tensors.items()}
    true = {name: np.zeros(shape) for name, shape in LAYOUT.tensors.items()}
    sent = {name: np.zeros(shape) for name, shape in LAYOUT.tensors.items()}
    residual: Adapter = {}
    for round_ in range(50):
        moved = {name: tensor.copy() for name, tensor in drift.items()}
        for name in moved:
            np.fill_diagonal(moved[name], 1.0 if round_ % 2 else -1.0)
        body, left = encode_update(LAYOUT, precision, moved, base, residual)
        residual = left if feedback else {}
        found = view(folder, precision, body, base)
        for name in LAYOUT.tensors:
            true[name] += moved[name]
            sent[name] += found[name]
    return max(float(np.abs(true[n] - sent[n]).max()) for n in true), 1.01 / 127


def test_error_feedback_keeps_the_sum_true(tmp_path: Path) -> None:
    """Over 50 rounds the sent sum stays within one step of the true one; without it, it drifts
    away.
    """
    distance, step = sent_and_true(tmp_path, "int8", feedback=True)
    assert distance <= step
    astray, _ = sent_and_true(tmp_path, "int8", feedback=False)
    assert astray > 5 * step


def test_error_feedback_in_bfloat16(tmp_path: Path) -> None:
    """The sent sum follows the true one in this precision too."""
    base = {name: np.zeros(shape, np.float32) for name, shape in LAYOUT.tensors.items()}
    moved = {name: np.full(shape, 1.003, np.float32) for name, shape in LAYOUT.tensors.items()}
    for feedback, stays in ((True, True), (False, False)):
        residual: Adapter = {}
        total = np.zeros((4, 9))
        for _ in range(50):
            body, left = encode_update(LAYOUT, "bfloat16", moved, base, residual)
            residual = left if feedback else {}
            total += view(tmp_path, "bfloat16", body, base)["x.lora_A.weight"]
        assert bool(np.abs(total - 50 * np.float32(1.003)).max() <= 2.0**-7) is stays


def test_reduced_updates_of_a_real_layout_are_a_half_and_a_quarter() -> None:
    """Qwen2.5-0.5B, all linear layers, rank 32: int8 is at most 0.26 of float32."""
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
    assert largest_update(layout, run_in("int8")) <= 0.26 * layout.file_bytes
    assert largest_update(layout, run_in("bfloat16")) <= 0.51 * layout.file_bytes


@pytest.mark.parametrize("value", [np.nan, np.inf, 2 * LARGEST])
@pytest.mark.parametrize("precision", REDUCED)
def test_training_that_diverged_sends_nothing(precision: Precision, value: float) -> None:
    """The client itself refuses, and names the tensor."""
    trained = adapter(1)
    trained["x.lora_B.weight"][2, 1] = value
    with pytest.raises(InvalidAdapter, match=r"x\.lora_B\.weight"):
        encode_update(LAYOUT, precision, trained, adapter(2), {})


def spoilt(precision: Precision, tensor: str, value: bytes) -> bytes:
    """An update with the first number of a tensor replaced."""
    body = bytearray(encode_update(LAYOUT, precision, adapter(1), adapter(2), {})[0])
    specs, start = read_header(bytes(body))
    begin = start + specs[tensor].begin
    body[begin : begin + len(value)] = value
    return bytes(body)


@pytest.mark.parametrize(("precision", "fits"), [("float32", True), ("int8", False)])
def test_a_run_whose_updates_have_too_many_tensors_is_not_created(
    precision: Precision, fits: bool, tiny_qwen3: Path, card_of: Callable[[Path], ModelCard]
) -> None:
    """The scales of int8 are tensors too; such a run could never accept an update."""
    pairs = range(MAX_TENSORS // 4 + 1)
    tensors = {f"{n}.lora_{side}.weight": (1, 1) for n in pairs for side in "AB"}
    card = card_of(tiny_qwen3).model_copy(update={"layout": AdapterLayout(tensors=tensors)})
    settings = RunSettings(wire=WireSettings(precision=precision))
    with nullcontext() if fits else pytest.raises(ValueError, match="than int8"):
        CreateRun(name="run", settings=settings, model=card)


def float32(value: float) -> bytes:
    """The number's four bytes."""
    return np.float32(value).tobytes()


@pytest.mark.parametrize(
    ("precision", "tensor", "value"),
    [
        *(("int8", "x.lora_A.weight.scale", float32(x)) for x in (np.nan, np.inf, -1, 1e30)),
        *(("bfloat16", "x.lora_A.weight", float32(x)[2:]) for x in (np.nan, -np.inf, 1e30)),
    ],
)
def test_numbers_out_of_range_are_refused(
    tmp_path: Path, precision: Precision, tensor: str, value: bytes
) -> None:
    """Numbers that are not finite, negative scales, and changes larger than any training makes."""
    path = tmp_path / "update"
    path.write_bytes(spoilt(precision, tensor, value))
    update = open_update(path, LAYOUT, precision)
    with pytest.raises(InvalidAdapter, match=tensor.replace(".", r"\.")):
        update.digest()


def test_the_largest_update_that_is_made_is_taken(tmp_path: Path) -> None:
    """Client and coordinator use the same bound."""
    base = {name: np.zeros(shape, np.float32) for name, shape in LAYOUT.tensors.items()}
    far = {name: np.full(shape, LARGEST, np.float32) for name, shape in LAYOUT.tensors.items()}
    for precision in REDUCED:
        path = tmp_path / precision
        path.write_bytes(encode_update(LAYOUT, precision, far, base, {})[0])
        open_update(path, LAYOUT, precision).digest()


def with_header(body: bytes, change: str, by: str) -> bytes:
    """The file with this change in the text of its header."""
    length = int.from_bytes(body[:8], "little")
    text = body[8 : 8 + length].decode().rstrip().replace(change, by)
    raw = text.encode() + b" " * (-len(text) % 8)
    return len(raw).to_bytes(8, "little") + raw + body[8 + length :]


BODY = encode_update(LAYOUT, "int8", adapter(1), adapter(2), {})[0]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (encode_adapter(LAYOUT, adapter(1)), "2 tensors are missing, such as .*scale"),
        (encode_update(LAYOUT, "bfloat16", adapter(1), adapter(2), {})[0], "are missing"),
        (BODY + b"x", "bytes, but its header says"),
        (BODY[:-1], "bytes, but its header says"),
        (with_header(BODY, '"I8"', '"U8"'), "is U8"),
        (with_header(BODY, "[4,9]", "[9,4]"), r"is I8 \(9, 4\)"),
        (
            with_header(BODY, "x.lora_B.weight.scale", "x.lora_B.weight.scald"),
            "1 tensors are missing",
        ),
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
        open_update(path, LAYOUT, "int8")


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    """Another reader finds I8 tensors, and one scale per direction of the rank."""
    header = json.loads(BODY[8 : 8 + int.from_bytes(BODY[:8], "little")])
    assert header["x.lora_A.weight"]["dtype"] == "I8"
    assert header["x.lora_A.weight" + SCALE]["shape"] == [4, 1]
    assert header["x.lora_B.weight" + SCALE]["shape"] == [1, 4]
    from safetensors.numpy import load

    (tmp_path / "update").write_bytes(BODY)
    found = load(BODY)
    difference = ReducedFile(tmp_path / "update", LAYOUT, "int8").difference("x.lora_B.weight")
    product = found["x.lora_B.weight"].astype(np.float32) * found["x.lora_B.weight" + SCALE]
    assert np.array_equal(difference, product)
