"""Verifiers score a response from 0 to 1, which is its reward."""

from pubswap_protocol.verifiers.confined.pool import VerifierPool
from pubswap_protocol.verifiers.extract import extract_answer
from pubswap_protocol.verifiers.registry import (
    check_usable,
    score,
    verifier_for,
    verifier_of,
    verifier_version,
)

__all__ = [
    "VerifierPool",
    "check_usable",
    "extract_answer",
    "score",
    "verifier_for",
    "verifier_of",
    "verifier_version",
]
