"""Imported once by the fork server: what every worker needs, and what it must not look for itself.

To find libseccomp, its package starts a process.
"""

from pubswap_protocol.verifiers.confined import worker
from pubswap_protocol.verifiers.confined.sandbox import available

__all__ = ["worker"]

available()
