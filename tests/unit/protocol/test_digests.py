"""Digests, the names of blobs."""

import re
from pathlib import Path

import pytest
from blake3 import blake3

from pubswap_protocol.digests import (
    PATTERN,
    Digester,
    digest_of,
    digest_of_file,
    hexadecimal,
)
from pubswap_server.storage.store import digest_of_name, file_name, folder_name

DATA = b"some bytes" * 300_000
HEXADECIMAL = blake3(DATA).hexdigest()
DIGEST = f"blake3:{HEXADECIMAL}"


def test_bytes_have_one_digest_whole_in_pieces_and_in_a_file(tmp_path: Path) -> None:
    """It equals BLAKE3's own digest and matches the interface's pattern."""
    pieces = Digester()
    for begin in range(0, len(DATA), 70_001):
        pieces.update(memoryview(DATA)[begin : begin + 70_001])
    file = tmp_path / "file"
    file.write_bytes(DATA)
    assert digest_of(DATA) == digest_of_file(file) == pieces.digest() == DIGEST
    assert re.fullmatch(PATTERN, DIGEST)
    assert hexadecimal(DIGEST) == HEXADECIMAL


@pytest.mark.parametrize(
    "other", ["sha256:" + 64 * "a", "blake3:" + 64 * "A", "blake3:" + 63 * "a", 64 * "a", "blake3:"]
)
def test_other_names_are_no_digests(other: str) -> None:
    """Another algorithm, capital letters, another length, or no algorithm."""
    assert not re.fullmatch(PATTERN, other)


def test_a_blobs_file_tells_its_digest() -> None:
    """It is named after the digest, in a folder named after the first two digits."""
    assert digest_of_name(file_name(DIGEST)) == DIGEST
    assert folder_name(DIGEST) == HEXADECIMAL[:2]
    assert "." not in file_name(DIGEST)
