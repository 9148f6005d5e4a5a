"""The tasks beside the requests: one that ends takes the others with it, and then the process.

Whoever supervises the process starts another, which takes its decisions from the database again.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

log = structlog.get_logger(__name__)


async def together(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Do all of these, by their names, until one ends or this is cancelled."""
    async with asyncio.TaskGroup() as group:
        for name, work in works.items():
            group.create_task(_for_ever(name, work))


async def _for_ever(name: str, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
        raise RuntimeError("it returned")
    except Exception as error:
        # Its first line: those of a database go on with statements and parameters.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        log.critical("a background task died, so this process ends", task=name, error=reason)
        log.debug("where it died", task=name, exc_info=True)
        raise
