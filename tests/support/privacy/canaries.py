"""Canaries, and a search of bytes for them in every form that a leak is likely to have.

A canary is found by its pieces: 12 characters or 8 tokens in a row, from any position.

* as text in lower or upper case, in UTF-8 (raw) or UTF-16 of either byte order
* in hexadecimal; in base64 at each of the three alignments of its bytes to a group of three
* as token ids: in JSON, as integers of 16, 32 or 64 bits of either byte order, as varints
* any of these within gzip, zlib, bzip2, xz or zstd that begins anywhere, or within a bare deflate
  stream, which has no magic number, at the beginning of the data only; within base64 or
  hexadecimal; nested up to three deep

It does not find what is encrypted, or hidden in the numbers of a tensor.
"""

import base64
import bz2
import contextlib
import lzma
import re
import string
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow

LENGTH, PIECE, TOKENS = 24, 12, 8
STRIDE = 4  # so that any 15 characters, or 11 tokens, of a canary in a row contain a whole piece
DEPTH = 3
_LETTERS = string.ascii_lowercase + string.digits
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{16,}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){12,}")
_LARGEST = 1 << 24  # bytes read from a stream at most
_WORD = 8  # bytes by which a piece is looked up; no piece is shorter
_URL_SAFE, _STANDARD = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")

Hit = tuple[str, str]  # the canary, and the form that it was found in


def draw_canaries(count: int, seed: int) -> list[str]:
    """Random words of 24 lower-case letters and digits."""
    rng = Random(seed)
    return ["".join(rng.choices(_LETTERS, k=LENGTH)) for _ in range(count)]


class Search:
    """Finds canaries in bytes."""

    def __init__(self, canaries: Iterable[str], encode: Callable[[str], Sequence[int]]) -> None:
        """`encode` gives a text's token ids under the run's tokenizer."""
        self._by_word: dict[int, list[tuple[bytes, str, str]]] = defaultdict(list)
        for canary in canaries:
            for form, spelled in (*_texts(canary), *_token_lists(encode(canary))):
                assert len(spelled) >= _WORD, f"{canary} has too few tokens to search for"
                word = int.from_bytes(spelled[:_WORD], sys.byteorder)
                self._by_word[word].append((spelled, canary, form))
        self._words = np.array(sorted(self._by_word), np.uint64)

    def __call__(self, data: bytes) -> set[Hit]:
        """All canaries in the data, each with the forms it is found in."""
        return {
            (canary, how + form)
            for how, plain in unwrapped(data)
            for canary, form in self._plain(plain)
        }

    def _plain(self, data: bytes) -> Iterator[Hit]:
        for shift in range(min(_WORD, len(data) - _WORD + 1)):
            words = np.frombuffer(data, np.uint64, (len(data) - shift) // _WORD, shift)
            near = np.searchsorted(self._words, words).clip(max=len(self._words) - 1)
            for index in np.flatnonzero(self._words[near] == words).tolist():
                for spelled, canary, form in self._by_word[int(words[index])]:
                    if data.startswith(spelled, shift + index * _WORD):
                        yield canary, form


def _texts(canary: str) -> Iterator[tuple[str, bytes]]:
    for start in range(0, LENGTH - PIECE + 1, STRIDE):
        piece = canary[start : start + PIECE]
        raw = piece.encode()
        yield "raw", raw
        yield "capitals", raw.upper()
        yield "UTF-16", piece.encode("utf-16-le")
        yield "UTF-16", piece.encode("utf-16-be")
        yield "hexadecimal", raw.hex().encode()
        yield "hexadecimal", raw.hex().upper().encode()
        for offset in range(3):
            encoded = base64.b64encode(bytes(offset) + raw)
            # Only characters whose six bits all belong to the piece.
            sure = encoded[-(-offset * 8 // 6) : (offset + PIECE) * 8 // 6]
            yield "base64", sure
            yield "base64", sure.translate(_URL_SAFE)


def _token_lists(ids: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    inner = list(ids)[1:-1]  # the outer tokens may differ if a canary has text around it
    for start in range(0, max(1, len(inner) - TOKENS + 1), STRIDE):
        piece = inner[start : start + TOKENS]
        for separator in (",", ", "):
            yield "tokens in JSON", separator.join(map(str, piece)).encode()
        for kind in ("<i2", ">i2", "<i4", ">i4", "<i8", ">i8"):
            yield "tokens as integers", np.array(piece, kind).tobytes()
        yield "tokens as varints", b"".join(map(varint, piece))


def varint(number: int) -> bytes:
    """LEB128, as in protocol buffers: seven bits a byte, the low ones first."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def unwrapped(data: bytes, how: str = "", depth: int = DEPTH) -> Iterator[tuple[str, bytes]]:
    """The bytes themselves and everything packed in them, each with the way it was packed."""
    yield how, data
    for name, inner in (*_decoded(data), *_decompressed(data)) if depth else ():
        yield from unwrapped(inner, f"{how}{name}: ", depth - 1)


def _decoded(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The decoded base64 and hexadecimal in the data, each joined, across line breaks."""
    data = re.sub(rb"\r?\n|\\n", b"", data)
    runs = (run.translate(_STANDARD) for run in set(_BASE64.findall(data)))
    # A run may begin with letters that are not part of the base64.
    parts = [run[start : start + (len(run) - start) // 4 * 4] for run in runs for start in range(4)]
    if parts:
        yield "base64", bytes(8).join(map(base64.b64decode, parts))
    if digits := set(_HEX.findall(data)):
        yield "hexadecimal", bytes(8).join(map(bytes.fromhex, map(bytes.decode, digits)))


def _decompressed(data: bytes) -> Iterator[tuple[str, bytes]]:
    for name, mark, unpack in _PACKERS:
        for match in re.finditer(mark, data):
            if inner := _grown(unpack(memoryview(data)[match.start() :])):
                yield name, inner


def _grown(pieces: Iterator[bytes]) -> bytes:
    """A stream's output until it ends, breaks, or reaches 16 MiB."""
    grown = bytearray()
    with contextlib.suppress(zlib.error, OSError, EOFError, lzma.LZMAError):
        for piece in pieces:
            grown += piece
            if len(grown) > _LARGEST:
                break
    return bytes(grown)


def _by(opened: Callable[[], Any]) -> Callable[[memoryview], Iterator[bytes]]:
    """Unpack with a standard-library decompressor in small steps, so that a broken stream yields
    what comes before the break."""

    def unpack(data: memoryview) -> Iterator[bytes]:
        decompressor = opened()
        for start in range(0, len(data), 256):
            yield decompressor.decompress(data[start : start + 256])
            if decompressor.eof:
                return

    return unpack


def _zstd(data: memoryview) -> Iterator[bytes]:
    stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(pyarrow.py_buffer(data)), "zstd")
    return iter(lambda: stream.read(256), b"")


_PACKERS = (
    ("gzip", rb"\x1f\x8b\x08", _by(lambda: zlib.decompressobj(31))),
    ("zlib", rb"\x78[\x01\x5e\x9c\xda]", _by(zlib.decompressobj)),
    ("deflate", rb"\A", _by(lambda: zlib.decompressobj(-15))),
    ("bzip2", rb"BZh[1-9]", _by(bz2.BZ2Decompressor)),
    ("xz", rb"\xfd7zXZ\x00", _by(lzma.LZMADecompressor)),
    ("zstd", rb"\x28\xb5\x2f\xfd", _zstd),
)
