"""The names of bytes."""

import hashlib
import re
from pathlib import Path

import pytest
from blake3 import blake3

from pubswap_protocol.digests import (
    PATTERN,
    Digester,
    algorithm_of,
    digest_of,
    digest_of_file,
    file_matches,
    hexadecimal,
)
from pubswap_server.storage.verified import file_name, folder_name, named

DATA = b"some bytes" * 300_000
KNOWN = {"blake3": blake3(DATA).hexdigest(), "sha256": hashlib.sha256(DATA).hexdigest()}


@pytest.mark.parametrize("algorithm", KNOWN)
def test_bytes_have_one_name_whole_in_pieces_and_in_a_file(algorithm: str, tmp_path: Path) -> None:
    """It is the algorithm's own digest, and fits the interface's pattern."""
    expected = f"{algorithm}:{KNOWN[algorithm]}"
    pieces = Digester(algorithm)
    for begin in range(0, len(DATA), 70_001):
        pieces.update(memoryview(DATA)[begin : begin + 70_001])
    file = tmp_path / "file"
    file.write_bytes(DATA)
    assert digest_of(DATA, algorithm) == pieces.digest() == expected
    assert digest_of_file(file, algorithm) == expected
    assert file_matches(file, expected)
    assert not file_matches(file, expected[:-1] + ("0" if expected[-1] != "0" else "1"))
    assert re.fullmatch(PATTERN, expected)
    assert (algorithm_of(expected), hexadecimal(expected)) == (algorithm, KNOWN[algorithm])


def test_ours_is_blake3() -> None:
    """Nobody has to name it."""
    assert digest_of(DATA) == f"blake3:{KNOWN['blake3']}"


@pytest.mark.parametrize(
    "other", ["md5:" + 32 * "a", "blake3:" + 64 * "A", "sha256:" + 63 * "a", 64 * "a", "blake3:"]
)
def test_other_names_are_no_digests(other: str) -> None:
    """Another algorithm, another length, capital letters, no algorithm."""
    assert not re.fullmatch(PATTERN, other)


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_blobs_file_tells_its_digest(algorithm: str) -> None:
    """Files that were named by SHA-256 alone are found under the names that they have."""
    digest = f"{algorithm}:{KNOWN[algorithm]}"
    assert named(file_name(digest)) == digest
    assert folder_name(digest) == KNOWN[algorithm][:2]
    assert "." not in file_name(digest)
    if algorithm == "sha256":
        assert file_name(digest) == KNOWN[algorithm]
