"""How long the event loop is held up: while it is, nobody's request goes on."""

import asyncio

from pubswap_server.monitoring.metrics import Metrics

LOOK_SECONDS = 0.02


async def watch(metrics: Metrics) -> None:
    """Look every few hundredths of a second, and note how late each look comes."""
    loop = asyncio.get_running_loop()
    longest = 0.0
    while True:
        due = loop.time() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        late = loop.time() - due
        metrics.loop_late.observe(late)
        if late > longest:
            longest = late
            metrics.loop_longest.set(longest)
