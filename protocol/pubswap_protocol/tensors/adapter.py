"""A LoRA adapter: its layout, its canonical file, and the checks that every upload must pass.

Canonical means: tensors sorted by name, float32, no metadata. Two adapters with equal tensors then
have equal bytes, so that a digest names an adapter's value.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, WithJsonSchema

from pubswap_protocol.bounds import Strict
from pubswap_protocol.digests import Digester
from pubswap_protocol.draws import rng_for
from pubswap_protocol.errors import InvalidAdapter
from pubswap_protocol.methods.rules import Rule
from pubswap_protocol.tensors.safetensors_header import (
    MAX_TENSORS,
    TensorSpec,
    data_bytes,
    header_bytes,
    header_of_file,
    packed,
    read_header,
)

Array = NDArray[np.float32]
Adapter = dict[str, Array]
TensorName = Annotated[str, Field(max_length=1000)]
Side = Annotated[int, Field(gt=0, le=1 << 30, strict=True)]
_Pair = Annotated[list[Side], Field(min_length=2, max_length=2)]
Shape = Annotated[tuple[Side, Side], WithJsonSchema(TypeAdapter(_Pair).json_schema())]

# A million; trained factors stay below 10. Numbers computed from them stay far below float32's
# 3e38: the square of a difference is at most 2^42, the sum of a billion of them 2^72, and a product
# B A of rank 2^16 at most 2^58. A server optimizer's squares are at most LARGEST_DERIVED: another
# such product, with alpha / r, is still finite.
LARGEST = 2.0**20
LARGEST_DERIVED = 2.0**60

_SLICE = 1 << 18  # numbers that are checked while they are in the processor's cache
_NUMPY: dict[str, Any] = {"F32": "<f4", "BF16": "<u2", "I8": "i1"}


class AdapterLayout(Strict):
    """The names and shapes of a run's adapter tensors, as PEFT names them."""

    # A server optimizer's state on the coordinator has two tensors for each of an update.
    tensors: Annotated[dict[TensorName, Shape], Field(max_length=2 * MAX_TENSORS)]

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """The place of each tensor in the canonical file."""
        return packed((name, "F32", self.tensors[name]) for name in sorted(self.tensors))

    @cached_property
    def header(self) -> bytes:
        """The canonical file's first bytes: the length and the header, padded to 8 bytes."""
        return header_bytes(self.specs)

    def __hash__(self) -> int:
        return hash(self.header)

    @property
    def parameters(self) -> int:
        """The number of parameters in an adapter."""
        return sum(math.prod(shape) for shape in self.tensors.values())

    @property
    def file_bytes(self) -> int:
        """The canonical file's size in bytes."""
        return len(self.header) + 4 * self.parameters


def encode_adapter(layout: AdapterLayout, adapter: Mapping[str, Array]) -> bytes:
    """The canonical file of an adapter; raises InvalidAdapter if it does not fit the layout."""
    _check_specs(packed((name, "F32", a.shape) for name, a in adapter.items()), layout.specs)
    # BytesIO returns its value without a copy, so the file is in memory only once.
    file = BytesIO()
    file.write(layout.header)
    for name in layout.specs:
        file.write(np.ascontiguousarray(adapter[name], dtype=np.float32).data)
    return file.getvalue()


def decode_adapter(layout: AdapterLayout, data: bytes | memoryview) -> Adapter:
    """The tensors of an adapter file held in memory; raises InvalidAdapter as AdapterFile does."""
    start = len(layout.header)
    if data[:start] != layout.header:
        _refuse(read_header(data)[0], layout.specs)
    _check_size(len(data), layout.file_bytes)
    adapter = {
        name: np.frombuffer(data, np.float32, math.prod(s.shape), start + s.begin).reshape(s.shape)
        for name, s in layout.specs.items()
    }
    for name, array in adapter.items():
        check_numbers(name, array)
    return adapter


def initial_adapter(layout: AdapterLayout, seed: int) -> Adapter:
    """The first adapter of a run: B = 0 and the same random A for everyone (paper, section 3.3).

    A is uniform in +-1/sqrt(in), which is PEFT's default (Kaiming, a = sqrt 5), drawn per tensor
    from (seed, name).
    """
    return {name: _initial_tensor(name, shape, seed) for name, shape in layout.tensors.items()}


def initial_file(layout: AdapterLayout, seed: int) -> Iterator[bytes]:
    """The canonical file of `initial_adapter`, with one tensor in memory at a time."""
    yield layout.header
    for name in layout.specs:
        yield _initial_tensor(name, layout.tensors[name], seed).tobytes()


def _initial_tensor(name: str, shape: tuple[int, int], seed: int) -> Array:
    if ".lora_B." in name:
        return np.zeros(shape, dtype=np.float32)
    bound = 1 / math.sqrt(shape[1])
    return rng_for(seed, "lora_A", name).uniform(-bound, bound, shape).astype(np.float32)


class AdapterSource(ABC):
    """A source of an adapter's tensors, which can be read a few rows at a time."""

    layout: AdapterLayout

    @abstractmethod
    def rows(self, name: str, first: int, last: int) -> Array:
        """Rows first .. last - 1 of a tensor: (last - first, columns)."""

    def tensor(self, name: str) -> Array:
        """One whole tensor."""
        return self.rows(name, 0, self.layout.tensors[name][0])


class MappedFile:
    """A memory-mapped canonical file of tensors, with one tensor in memory at a time."""

    def __init__(self, path: Path, specs: Mapping[str, TensorSpec], header: bytes) -> None:
        """Open, and check the header and the size, but not the numbers.

        Raises InvalidAdapter, saying what differs from `specs`.
        """
        self.path = path
        self.specs = specs
        self._start = len(header)
        with path.open("rb") as file:
            if file.read(len(header)) != header:
                _refuse(header_of_file(path)[0], specs)
        _check_size(path.stat().st_size, len(header) + data_bytes(specs))
        self._bytes = np.asarray(np.memmap(path, np.uint8, "r"))  # a memmap is slow to slice

    def raw(self, name: str) -> NDArray[Any]:
        """One tensor as stored in the file, read from the map."""
        spec = self.specs[name]
        part = self._bytes[self._start + spec.begin : self._start + spec.end]
        numbers: NDArray[Any] = part.view(_NUMPY[spec.dtype])
        return numbers.reshape(spec.shape)

    def slices(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """All numbers in the file's order, in slices with their tensor's name."""
        for name in self.specs:
            flat = self.raw(name).reshape(-1)
            for begin in range(0, flat.size, _SLICE):
                yield name, flat[begin : begin + _SLICE]

    def digest(self) -> str:
        """Check all numbers and return the file's digest, in one pass over the bytes.

        Raises InvalidAdapter, naming the tensor and the number, as `check_part` does.
        """
        digester = Digester()
        digester.update(self._bytes[: self._start].data)
        for name, part in self.slices():
            digester.update(part.view(np.uint8).data)
            self.check_part(name, part)
        return digester.digest()

    def check_part(self, name: str, values: NDArray[Any]) -> None:
        """Raises InvalidAdapter if a slice of a tensor has an invalid number."""
        check_numbers(name, values)


class AdapterFile(MappedFile, AdapterSource):
    """A checked adapter file; tensors are read from the map."""

    def __init__(self, path: Path, layout: AdapterLayout) -> None:
        """Open, and check all but the numbers; raises InvalidAdapter."""
        self.layout = layout
        super().__init__(path, layout.specs, layout.header)

    def rows(self, name: str, first: int, last: int) -> Array:
        return self.raw(name)[first:last]

    def digest(self) -> str:
        """Check all numbers and return the file's digest; raises InvalidAdapter.

        Slices span tensors, because hundreds of tensors have only a few numbers each.
        """
        digester, numbers = Digester(), self._bytes[self._start :].view(_NUMPY["F32"])
        digester.update(self._bytes[: self._start].data)
        for begin in range(0, numbers.size, _SLICE):
            part = numbers[begin : begin + _SLICE]
            digester.update(part.view(np.uint8).data)
            if not -LARGEST <= part.min() <= part.max() <= LARGEST:
                self.check()  # names the tensor
        return digester.digest()

    def check(self, largest: float = LARGEST) -> None:
        """Check all numbers, as `digest` does; raises InvalidAdapter."""
        for name, part in self.slices():
            check_numbers(name, part, largest)

    def load(self) -> Adapter:
        """All tensors, copied into memory."""
        return {name: np.array(self.tensor(name)) for name in self.layout.specs}


def _check_specs(specs: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> None:
    """Raises InvalidAdapter if names, types or shapes differ from the expected ones."""
    missing, extra = sorted(expected.keys() - specs.keys()), sorted(specs.keys() - expected.keys())
    if missing:
        raise InvalidAdapter(f"{len(missing)} tensors are missing, such as {missing[0]!r}.")
    if extra:
        raise InvalidAdapter(f"{len(extra)} tensors are not this run's, such as {extra[0]!r}.")
    for name, spec in specs.items():
        expected_spec = expected[name]
        if (spec.dtype, spec.shape) != (expected_spec.dtype, expected_spec.shape):
            raise InvalidAdapter(
                f"Tensor {name!r} is {spec.dtype} {spec.shape}; this run takes "
                f"{expected_spec.dtype} {expected_spec.shape}."
            )


def _refuse(specs: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> NoReturn:
    """Raises InvalidAdapter for a file whose header differs, saying how its tensors differ."""
    _check_specs(specs, expected)
    raise InvalidAdapter("The header is not in the canonical form.")


def _check_size(size: int, expected: int) -> None:
    if size != expected:
        raise InvalidAdapter(f"The file has {size} bytes, but its header says {expected}.")


def check_numbers(name: str, values: Array, largest: float = LARGEST) -> None:
    """Raises InvalidAdapter for a number that is not finite or not in -`largest` .. `largest`."""
    low, high = float(values.min()), float(values.max())
    if -largest <= low and high <= largest:
        return
    worst = low if abs(low) > abs(high) else high
    if not math.isfinite(worst):
        raise InvalidAdapter(f"Tensor {name!r} holds a number that is not finite: {worst}.")
    raise InvalidAdapter(
        f"Tensor {name!r} holds {worst:.6g}; an adapter's numbers are at most {largest:.6g} in "
        "magnitude. Training has diverged."
    )


_A, _B = ".lora_A.weight", ".lora_B.weight"


def is_a(name: str) -> bool:
    """Whether a tensor is an A, of shape (rank, in); the others are B, of shape (out, rank)."""
    return name.endswith(_A)


def modules(layout: AdapterLayout) -> list[tuple[str, str]]:
    """The names of each module's A and B, sorted by name."""
    return [(name, name.removesuffix(_A) + _B) for name in sorted(layout.tensors) if is_a(name)]


def sent_layout(layout: AdapterLayout, rule: Rule) -> AdapterLayout:
    """The tensors that a client sends in a round: all of them, or under FFA-LoRA only the B."""
    if rule.sends_a:
        return layout
    return AdapterLayout(tensors={n: shape for n, shape in layout.tensors.items() if not is_a(n)})


def stack_layout(layout: AdapterLayout, ranks: Mapping[str, int]) -> AdapterLayout:
    """The run's layout with other ranks, given by the name of each module's A."""
    tensors = {}
    for a, b in modules(layout):
        tensors[a] = (ranks[a], layout.tensors[a][1])
        tensors[b] = (layout.tensors[b][0], ranks[a])
    return AdapterLayout(tensors=tensors)


def stack_ranks(specs: Mapping[str, TensorSpec], layout: AdapterLayout) -> dict[str, int]:
    """The rank of each module in a stack's header, by the name of its A; raises InvalidAdapter."""
    ranks = {}
    for a, _ in modules(layout):
        if a not in specs or len(specs[a].shape) != 2:
            raise InvalidAdapter(f"The stack has no matrix {a!r}.")
        ranks[a] = specs[a].shape[0]
    return ranks
