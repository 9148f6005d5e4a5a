"""The ways in which a pack's attention can be computed, by name."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpu.context import NotRun
from pubswap_client.policy.policy import Policy


@contextmanager
def attend_by(policy: Policy, path: str | None) -> Iterator[str]:
    """Inside, packs attend by this path, or by the policy's own choice; gives the path's name.

    Raises NotRun for one that is not there.
    """
    before = policy.portable
    if path is not None:
        if path not in ("flash", "portable"):
            raise NotRun(f"there is no {path} attention")
        if path == "flash" and policy.device.type != "cuda":
            raise NotRun("flash attention needs a GPU")
        policy.portable = path == "portable"
    try:
        yield "portable" if policy.portable else "flash"
    finally:
        policy.portable = before
