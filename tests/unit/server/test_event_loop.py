"""Delays of the event loop, and which of them are its own."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubswap_server.monitoring.metrics import LOOK_SECONDS, Metrics, watch_loop

HOGS = 3


@pytest.fixture
def shared_core() -> Iterator[None]:
    """Keep this thread on one core, which other processes want all the time."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        os.sched_setaffinity(0, allowed)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux alone says it")
def test_a_wait_for_a_core_delays_the_event_loop_and_does_not_block_it(shared_core: None) -> None:
    """What computes for 0.1 s takes longer beside others, and has blocked for 0.1 s."""
    metrics = Metrics()

    async def compute() -> None:
        watching = asyncio.create_task(watch_loop(metrics))
        await asyncio.sleep(2 * LOOK_SECONDS)
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        await asyncio.sleep(2 * LOOK_SECONDS)
        watching.cancel()

    asyncio.run(compute())
    [longest], [blocked] = (
        [sample.value for sample in family.samples]
        for gauge in (metrics.loop_longest, metrics.loop_blocked)
        for family in gauge.collect()
    )
    assert longest > 0.2
    assert 0.1 - LOOK_SECONDS <= blocked <= longest - 0.05
