"""The attention paths for an update's packs, by name."""

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.gpu.context import NotRun
from pubswap_client.policy.attention_kernels import packed_kernels
from pubswap_client.policy.padded import PADDED
from pubswap_client.policy.policy import Policy


@contextmanager
def attend_by(policy: Policy, path: str | None) -> Iterator[str]:
    """Make the policy use this path, or the one its self-check chose; yields the path's name.

    Raises NotRun for a path that this device does not have.
    """
    previous = policy.path
    if path is not None:
        if path not in (*packed_kernels(policy.device, policy.dtype), PADDED):
            raise NotRun(f"{path} needs a GPU")
        policy.path = path
    try:
        yield policy.path
    finally:
        policy.path = previous
