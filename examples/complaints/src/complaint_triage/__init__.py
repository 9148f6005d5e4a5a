"""A verifier for PubSwap: the triage of a complaint, as JSON."""

from complaint_triage.scorer import score

__all__ = ["score"]
