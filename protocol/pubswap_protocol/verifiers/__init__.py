"""Verifiers decide whether a response is correct: reward 1.0 or 0.0, nothing in between."""

from pubswap_protocol.verifiers.extract import extract_answer
from pubswap_protocol.verifiers.pool import VerifierPool
from pubswap_protocol.verifiers.registry import (
    check_usable,
    check_verifier,
    score,
    verifier_version,
)

__all__ = [
    "VerifierPool",
    "check_usable",
    "check_verifier",
    "extract_answer",
    "score",
    "verifier_version",
]
