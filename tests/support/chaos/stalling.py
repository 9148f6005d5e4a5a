"""`pubswap serve` that reports where it is in an aggregation, and pauses there.

The points are wrapped around the product's functions from outside, so that a test can stop the
process there.
"""

import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any

TRACE = "PUBSWAP_TESTS_TRACE"
SECONDS = 0.4
# With the lease held but no work done yet, and with the adapter stored but not yet published.
POINTS = ("held", "written")


def pass_point(name: str) -> None:
    """Write where this process is, and pause."""
    trace = os.open(os.environ[TRACE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(trace, f"{os.getpid()} {name}\n".encode())
    os.close(trace)
    time.sleep(SECONDS)


def install() -> None:
    """Put the points into this process."""
    from pubswap_server.conductor.leases import Leases
    from pubswap_server.storage.local import LocalBlobs

    held, write = Leases.held, LocalBlobs.write

    @contextlib.asynccontextmanager
    async def slowly_held(self: Any, *args: Any) -> AsyncIterator[None]:
        async with held(self, *args):
            pass_point("held")
            yield

    def slowly_written(self: Any, *args: Any) -> tuple[str, int]:
        blob = write(self, *args)
        pass_point("written")
        return blob

    Leases.held = slowly_held  # type: ignore[method-assign]
    LocalBlobs.write = slowly_written  # type: ignore[method-assign]


if __name__ == "__main__":
    from pubswap_protocol.cli import main

    install()
    main()
