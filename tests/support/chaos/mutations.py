"""Inputs for the fuzzer: valid files with a few changes, each drawn from (seed, number) alone."""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pubswap_protocol.tensors.adapter import AdapterLayout, encode_adapter
from pubswap_protocol.tensors.response_form import ResponseForm
from pubswap_protocol.tensors.responses import Response, ResponseRules, encode_responses

LAYOUT = AdapterLayout(tensors={"q.lora_A.weight": (2, 3), "q.lora_B.weight": (4, 2)})
FORM = ResponseForm(ends=(9,), longest=4, vocabulary=50)
RULES = ResponseRules(prompts=(3, 7), responses_per_prompt=2, form=FORM)

ODD_NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    6,
    7,
    8,
    24,
    2**16,
    2**31,
    2**32,
    2**47,
    2**48,
    2**63,
    2**64,
    -(2**63),
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 1.0, 2.5, 1e400, "", "2", "F32", [], {}, [1], [[2, 3]], {"a": 1}),
    *(10**30, -(10**30), [0] * 70, "x" * 300),
)
ODD_DTYPES = (
    "F32",
    "F64",
    "F16",
    "BF16",
    "I64",
    "I32",
    "I16",
    "I8",
    "U8",
    "U16",
    "BOOL",
    "F4",
    "f32",
)
ODD_NAMES = (
    *(
        "",
        "__metadata__",
        "../../etc/passwd",
        "q.lora_A.weight",
        "Q.LORA_A.WEIGHT",
        "a\x00b",
        "\ud800",
    ),
    *("\udfff\ud800", "é", "e\u0301", "\U0001f600", "x" * 5000, "prompts", "tokens", "\ufeff"),
)
ODD_BYTES = (
    *(b"NaN", b"Infinity", b"-Infinity", b"-0", b"1e2", b"01", b"+1", b"0x10", b"null", b"true"),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"\\ud83d\\ude00"),
    *(b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b" ", b"\n", b"\t", b"\x0b"),
    *(b"//", b"/**/", b"'", b"\xe2\x80\xa8", b"9" * 400, b"[" * 200, b'{"a":' * 100),
    *(b'"__metadata__":{},', b'"__metadata__":null,', b'"__metadata__":{"a":"b"},', b'"a":1,'),
)

Header = dict[str, Any]


@dataclass
class File:
    """A safetensors file in two parts: its parsed header and its data."""

    header: Header
    data: bytes


def valid_adapter(rng: random.Random) -> bytes:
    """An adapter of the layout."""
    adapter = {
        name: np.array(
            [rng.uniform(-9, 9) for _ in range(shape[0] * shape[1])], np.float32
        ).reshape(shape)
        for name, shape in LAYOUT.tensors.items()
    }
    return encode_adapter(LAYOUT, adapter)


def valid_responses(rng: random.Random) -> bytes:
    """Responses that obey the rules."""
    groups = [
        [
            Response(
                np.array([*(rng.randrange(9) for _ in range(length - 1)), 9], np.int32),
                np.array([-rng.random() for _ in range(length)], np.float32),
                donated=rng.random() < 0.5,
            )
            for length in (rng.randint(1, 4), rng.randint(1, 4))
        ]
        for _ in RULES.prompts
    ]
    return encode_responses(RULES.prompts, groups)


def parted(file: bytes) -> File:
    """A valid file, split into header and data."""
    length = int.from_bytes(file[:8], "little")
    return File(json.loads(file[8 : 8 + length]), file[8 + length :])


# Changes to the parsed header


def _entry(rng: random.Random, file: File) -> Any:
    return file.header[rng.choice(list(file.header))] if file.header else {}


def odd(rng: random.Random) -> Any:
    """A value of another type; a copy, because it may be changed further."""
    return copy.deepcopy(rng.choice(ODD_VALUES))


def change_dtype(rng: random.Random, file: File) -> None:
    """Set another dtype, known or not."""
    entry = _entry(rng, file)
    if isinstance(entry, dict):
        entry["dtype"] = rng.choice(ODD_DTYPES)


def change_number(rng: random.Random, file: File) -> None:
    """Change a dimension or an offset."""
    entry = _entry(rng, file)
    numbers = entry.get(rng.choice(("shape", "data_offsets"))) if isinstance(entry, dict) else None
    if isinstance(numbers, list) and numbers:
        index = rng.randrange(len(numbers))
        number = numbers[index] if isinstance(numbers[index], int) else 0
        near = (number + 1, number - 1, number + 4, number * 2)
        numbers[index] = rng.choice((rng.choice((*ODD_NUMBERS, *near)), rng.choice(near), odd(rng)))


def change_dimensions(rng: random.Random, file: File) -> None:
    """Give the same number of values another shape, or add dimensions of 1 and 0."""
    entry = _entry(rng, file)
    if isinstance(entry, dict) and isinstance(entry.get("shape"), list):
        shape = entry["shape"]
        chosen = rng.randrange(4)
        if chosen == 0:
            shape.reverse()
        elif chosen == 1:
            shape.insert(rng.randint(0, len(shape)), rng.choice((1, 1, 1, 0)))
        elif chosen == 2 and shape:
            del shape[rng.randrange(len(shape))]
        else:
            shape.extend([1] * rng.randint(1, 8))


def change_value(rng: random.Random, file: File) -> None:
    """Replace a field by a value of another type."""
    entry = _entry(rng, file)
    if isinstance(entry, dict):
        entry[rng.choice(("dtype", "shape", "data_offsets", "extra"))] = odd(rng)


def change_keys(rng: random.Random, file: File) -> None:
    """Rename, remove, copy, add or replace a tensor, or add metadata."""
    names = list(file.header)
    chosen = rng.randrange(5)
    if chosen == 0 and names:
        file.header[rng.choice(ODD_NAMES)] = file.header.pop(rng.choice(names))
    elif chosen == 1 and names:
        del file.header[rng.choice(names)]
    elif chosen == 2:
        file.header["__metadata__"] = rng.choice(
            (None, {}, [], "", 0, False, {"a": "b"}, {"a": 1}, {"format": "pt"}, "x")
        )
    elif chosen == 3 and names:
        file.header[rng.choice(ODD_NAMES)] = file.header[rng.choice(names)]
    else:
        file.header[rng.choice([*names, "new"])] = odd(rng)


def swap_tensors(rng: random.Random, file: File) -> None:
    """Swap two tensors' entries, and shuffle the order of all."""
    names = list(file.header)
    if len(names) > 1:
        first, second = rng.sample(names, 2)
        file.header[first], file.header[second] = file.header[second], file.header[first]
    rng.shuffle(names)
    file.header = {name: file.header[name] for name in names}


def grow(rng: random.Random, file: File) -> None:
    """Add a tensor after the last, correctly or nearly so."""
    size = rng.choice((0, 1, 4, 8, 24))
    begin = len(file.data) + rng.choice((0, 0, 0, 1, -1))
    file.header[rng.choice((*ODD_NAMES, "z"))] = {
        "dtype": "U8",
        "shape": [size],
        "data_offsets": [begin, begin + size],
    }
    file.data += bytes(size)


def change_data(rng: random.Random, file: File) -> None:
    """Change a word of the data to NaN, infinity or a huge number, or change the data's length."""
    words = (
        b"\x00\x00\xc0\x7f",
        b"\x00\x00\x80\x7f",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\x7f",
        bytes(4),
    )
    offset = 4 * rng.randrange(max(1, len(file.data) // 4))
    chosen = rng.randrange(6)
    if chosen < 4:
        file.data = file.data[:offset] + rng.choice(words) + file.data[offset + 4 :]
    elif chosen == 4:
        file.data = file.data[: rng.randint(0, len(file.data))]
    else:
        file.data += bytes(rng.choice((1, 4, 8, 4096)))


MEANINGS: tuple[Callable[[random.Random, File], None], ...] = (
    *(change_dtype, change_number, change_dimensions, change_value, change_keys),
    *(swap_tensors, grow, change_data),
)

# Changes to the header's text and to the bytes


def written(rng: random.Random, file: File) -> bytes:
    """The file's bytes, with the header written in one of many ways."""
    separators = rng.choice(((",", ":"), (", ", ": "), (" ,\n", "\t:\r")))
    text = json.dumps(file.header, separators=separators, ensure_ascii=rng.random() < 0.5)
    raw = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        raw = rng.choice((b" ", b"\n", b"\t", b"\r", b"\x00", b"\xef\xbb\xbf")) + raw
    if rng.random() < 0.3:
        raw += rng.choice((b" ", b" ", b" ", b"\n", b"\x00", b"}")) * rng.randint(1, 9)
    length = len(raw)
    if rng.random() < 0.05:
        length = rng.choice((0, 1, 2, length - 1, length + 1, 2**20, 2**20 + 1, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + raw + file.data


def with_text(rng: random.Random, file: bytes) -> bytes:
    """Insert or delete something in the header's text, and correct the length to match."""
    length = int.from_bytes(file[:8], "little")
    if length > len(file):
        return file
    raw, data = bytearray(file[8 : 8 + length]), file[8 + length :]
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        begin = rng.randint(0, len(raw))
        end = begin + rng.choice((0, 0, 1, 2, 8))
        raw[begin:end] = rng.choice(ODD_BYTES) if rng.random() < 0.8 else b""
    if rng.random() < 0.2:
        raw = bytearray(_twice(rng, bytes(raw)))
    return len(raw).to_bytes(8, "little") + bytes(raw) + data


def _twice(rng: random.Random, raw: bytes) -> bytes:
    """Repeat a key, in the same or in an escaped spelling."""
    start, end = raw.find(b'"'), raw.find(b'"', raw.find(b'"') + 1)
    if start < 0 or end < 0:
        return raw
    name = raw[start + 1 : end]
    if name and rng.random() < 0.5:
        name = b"\\u%04x" % name[0] + name[1:]
    return raw[:start] + b'"' + name + b'":{},' + raw[start:]


def with_bytes(rng: random.Random, file: bytes) -> bytes:
    """Flip bits, or delete, repeat or cut off bytes, anywhere."""
    changed = bytearray(file)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not changed:
            break
        offset = rng.randrange(len(changed))
        chosen = rng.randrange(5)
        if chosen < 2:
            changed[offset] ^= 1 << rng.randrange(8)
        elif chosen == 2:
            del changed[offset : offset + rng.choice((1, 2, 8, 64))]
        elif chosen == 3:
            changed[offset:offset] = changed[offset : offset + rng.choice((1, 4, 32))]
        else:
            del changed[offset:]
    return bytes(changed)


def bomb(rng: random.Random) -> bytes:
    """An invalid header that is cheap to send and might be costly to read."""
    empty = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    texts: tuple[Callable[[], bytes], ...] = (
        lambda: b"{" + b",".join(b'"%d":%s' % (n, empty) for n in range(18_000)) + b"}",
        lambda: b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        lambda: b'{"a":' * 170_000 + b"1" + b"}" * 170_000,
        lambda: b'{"a":' + b"9" * 1_000_000 + b"}",
        lambda: b'{"a":{"dtype":"U8","shape":[' + b"1," * 500_000 + b'1],"data_offsets":[0,1]}}',
        lambda: b'{"' + b"\\u0000" * 170_000 + b'":1}',
        lambda: b"{" + b",".join(b'"a%d":1' % n for n in range(90_000)) + b"}",
        lambda: b"{" + b" " * 1_000_000 + b"}",
        lambda: b'{"a":1e' + b"9" * 1_000_000 + b"}",
        lambda: (
            b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}'
            % b",".join([b"281474976710655"] * 60_000)
        ),
    )
    raw = rng.choice(texts)()[: 1 << 20]
    return len(raw).to_bytes(8, "little") + raw + bytes(rng.choice((0, 1, 8)))


@dataclass(frozen=True, slots=True)
class Input:
    """One input, the reader it is for, and whether it was left valid."""

    adapter: bool
    data: bytes
    valid: bool = False


def make(seed: int, number: int) -> Input:
    """The number-th input of a seed."""
    rng = random.Random(seed << 40 | number)
    adapter = rng.random() < 0.5
    if rng.random() < 0.0005:
        return Input(adapter, bomb(rng))
    file = valid_adapter(rng) if adapter else valid_responses(rng)
    way = rng.random()
    if way < 0.02:
        return Input(adapter, file, valid=True)
    if way < 0.7:
        parts = parted(file)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rng.choice(MEANINGS)(rng, parts)
        file = written(rng, parts)
    if way > 0.5:
        file = rng.choice((with_text, with_bytes))(rng, file)
    return Input(adapter, file)
