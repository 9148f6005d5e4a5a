"""Adapter files: the canonical form, and everything that is refused before use."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.methods.rules import FFA, Svd
from pubswap_protocol.tensors.adapter import (
    LARGEST,
    AdapterFile,
    AdapterLayout,
    decode_adapter,
    encode_adapter,
    initial_adapter,
    sent_layout,
)
from pubswap_protocol.tensors.safetensors_header import MAX_HEADER_BYTES, read_header

LAYOUT = AdapterLayout(
    tensors={
        "m.a.lora_A.weight": (2, 3),
        "m.a.lora_B.weight": (5, 2),
        "m.b.lora_A.weight": (2, 4),
        "m.b.lora_B.weight": (1, 2),
    }
)
GOOD = {
    name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for name, shape in LAYOUT.tensors.items()
}


def raw(header: Any, data: bytes = b"") -> bytes:
    """A file with this header, given as JSON or as bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: list[Any], begin: Any, end: Any, dtype: str = "F32") -> dict[str, Any]:
    """A tensor's entry in a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_the_canonical_file_is_plain_safetensors() -> None:
    """The library reads what we write, and its own file, once read by us, encodes to the same
    bytes.
    """
    data = encode_adapter(LAYOUT, GOOD)
    assert len(data) == LAYOUT.file_bytes
    for name, tensor in load(data).items():
        assert np.array_equal(tensor, GOOD[name])
    back = decode_adapter(LAYOUT, save(dict(reversed(GOOD.items()))))
    assert encode_adapter(LAYOUT, back) == data


def test_a_file_in_another_order_is_refused(tmp_path: Path) -> None:
    """Only one file is accepted for given tensors, so that they have one digest."""
    header, position, parts = {}, 0, []
    for name in sorted(GOOD, reverse=True):
        data = GOOD[name].tobytes()
        header[name] = entry(list(GOOD[name].shape), position, position + len(data))
        position += len(data)
        parts.append(data)
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw(header, b"".join(parts)))
    with pytest.raises(InvalidAdapter, match="canonical"):
        AdapterFile(path, LAYOUT)
    with pytest.raises(InvalidAdapter, match="canonical"):
        decode_adapter(LAYOUT, path.read_bytes())


def test_the_initial_adapter_is_a_function_of_the_seed_with_b_zero() -> None:
    """All members get the same A, within 1/sqrt(in); another seed gives another."""
    first, same, other = (initial_adapter(LAYOUT, seed) for seed in (1, 1, 2))
    assert encode_adapter(LAYOUT, first) == encode_adapter(LAYOUT, same)
    for name, tensor in first.items():
        if "lora_B" in name:
            assert not tensor.any()
        else:
            assert 0 < np.abs(tensor).max() <= 1 / tensor.shape[1] ** 0.5
            assert not np.array_equal(tensor, other[name])


NAME = "m.a.lora_A.weight"


def changed(value: float) -> dict[str, Any]:
    """The valid adapter with one number replaced."""
    spoilt = GOOD[NAME].copy()
    spoilt[-1, -1] = value
    return {**GOOD, NAME: spoilt}


BAD: dict[str, bytes] = {
    "are missing": save({k: v for k, v in GOOD.items() if k != NAME}),
    "are not this run's": save({**GOOD, "x": np.zeros(1, np.float32)}),
    f"{NAME}' is F32 \\(3, 2\\); this run takes F32 \\(2, 3\\)": save(
        {**GOOD, NAME: np.zeros((3, 2), np.float32)}
    ),
    f"{NAME}' is F64": save({**GOOD, NAME: GOOD[NAME].astype(np.float64)}),
    f"{NAME}' holds a number that": save({**GOOD, NAME: np.full((2, 3), np.nan, np.float32)}),
    f"{NAME}' holds a number": save({**GOOD, NAME: np.full((2, 3), np.inf, np.float32)}),
    "carries metadata": save(GOOD, metadata={"a": "b"}),
    "bytes, but its header says": encode_adapter(LAYOUT, GOOD) + b"x",
    "has .* bytes, but its header": encode_adapter(LAYOUT, GOOD)[:-1],
    "shorter than a safetensors header": b"abc",
    "header's length": (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"x" * 100,
    "not plain JSON": raw(b'{"a": 1, "a": 2}'),
    "does not begin with {": raw(b"[1, 2]"),
    "begin with { and end": raw(b" " + json.dumps({"a": entry([1], 0, 4)}).encode(), b"x" * 4),
    "end with } and spaces": raw(json.dumps({"a": entry([1], 0, 4)}).encode() + b"\n", b"x" * 4),
    "and spaces": raw(json.dumps({"a": entry([1], 0, 4)}).encode() + b"\t ", b"x" * 4),
    "holds 1e\\+20; an adapter's numbers are at most": encode_adapter(LAYOUT, changed(1e20)),
    "weight' holds -1.04868e\\+06": encode_adapter(LAYOUT, changed(-1.0001 * LARGEST)),
    "not finite: nan": encode_adapter(LAYOUT, changed(np.nan)),
    "1 to 4096 are allowed": raw({}),
    "dtype, shape and data_offsets only": raw({"a": {**entry([1], 0, 4), "note": "x"}}, b"x" * 4),
    "has the dtype": raw({"a": entry([1], 0, 4, "X9")}, b"x" * 4),
    "has the dtype \\[": raw({"a": {**entry([1], 0, 4), "dtype": ["F32"]}}, b"x" * 4),
    "has the dtype {": raw({"a": {**entry([1], 0, 4), "dtype": {}}}, b"x" * 4),
    "no usable shape": raw({"a": entry([1, 1, 1, 1, 1], 0, 4)}, b"x" * 4),
    "no usable shape or offsets": raw({"a": entry([True], 0, 4)}, b"x" * 4),
    "usable shape or offsets": raw({"a": entry([1], -4, 0)}, b"x" * 4),
    "do not fit its shape": raw({"a": entry([2], 0, 4)}, b"x" * 4),
    "do not fit its shape and dtype": raw({"a": entry([0], 0, 0)}),
    "begin where the one before it ends": raw(
        {"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"x" * 12
    ),
    "does not begin where": raw({"a": entry([1], 0, 4), "b": entry([1], 2, 6)}, b"x" * 6),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_file_is_refused_in_memory_and_on_disk(tmp_path: Path, message: str) -> None:
    """Both readers say what is wrong."""
    with pytest.raises(InvalidAdapter, match=message):
        decode_adapter(LAYOUT, BAD[message])
    path = tmp_path / "bad.safetensors"
    path.write_bytes(BAD[message])
    with pytest.raises(InvalidAdapter, match=message):
        AdapterFile(path, LAYOUT).digest()


def test_an_adapter_that_does_not_fit_is_not_encoded() -> None:
    """The message names the misshapen tensor."""
    with pytest.raises(InvalidAdapter, match=NAME):
        encode_adapter(LAYOUT, {**GOOD, NAME: np.zeros((9, 9), np.float32)})


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_invalid_adapter(data: bytes) -> None:
    """The reader never fails with any other error."""
    for attempt in (data, raw(data)):
        try:
            read_header(attempt)
        except InvalidAdapter:
            continue


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I32"]) | JSON,
        "shape": st.lists(st.integers(0, 3), max_size=5) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | JSON,
    }
)


@given(st.dictionaries(st.text(max_size=3), ENTRY | JSON, max_size=3) | JSON, st.binary())
def test_any_json_header_raises_nothing_but_invalid_adapter(header: Any, data: bytes) -> None:
    """Whatever JSON replaces a dtype, a shape or an offset."""
    try:
        read_header(raw(header, data))
    except InvalidAdapter:
        return


@given(st.integers(0, LAYOUT.file_bytes - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_a_number_only(place: int, value: int) -> None:
    """Any accepted file still fits the layout and is finite."""
    data = bytearray(encode_adapter(LAYOUT, GOOD))
    data[place] = value
    try:
        adapter = decode_adapter(LAYOUT, bytes(data))
    except InvalidAdapter:
        return
    assert {name: tensor.shape for name, tensor in adapter.items()} == LAYOUT.tensors
    assert all(np.isfinite(tensor).all() for tensor in adapter.values())


def test_what_a_client_sends_depends_on_the_rule() -> None:
    """All factors, or only the B factors under FFA-LoRA."""
    assert sent_layout(LAYOUT, Svd()) == LAYOUT
    assert set(sent_layout(LAYOUT, FFA()).tensors) == {n for n in LAYOUT.tensors if "lora_B" in n}
