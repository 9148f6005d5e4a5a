"""The replica that aggregates is stopped for longer than its lease, replaced, and continued."""

import os
import random
import signal
import sys
import time
from pathlib import Path

from pubswap_client.demo.processes import free_port
from support.chaos import stalling
from support.chaos.ledger import ReceiptLedger
from support.coordinator.coordinator import begun
from support.coordinator.postgres import postgres
from support.coordinator.serving import Serving

LEASE_SECONDS = 1.0
NAMES = ("a", "b")


def run(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Stop the one that aggregates in `count` rounds; how often it was `tried`, and `lost`.

    Lost are receipts that do not hold and adapters that are not their round's exact mean or were
    published twice. `fenced` is how often a continued replica tried to write something stale.
    """
    draw = random.Random(seed)
    trace = folder / "trace"
    env = {
        "PUBSWAP_LEASE_SECONDS": str(LEASE_SECONDS),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        stalling.TRACE: str(trace),
    }
    program = [sys.executable, "-m", "support.chaos.stalling"]
    with postgres() as server:
        url = server.new_database()
        services = [Serving(folder, url, free_port(), (), env, program=program) for _ in range(2)]
        with services[0], services[1]:
            for service in services:
                service.wait_until_ready()
            fed = begun(services[0].server, method="fedavg", rounds=count + 1)
            ledger = ReceiptLedger(fed, NAMES, seed)
            for round_ in range(1, count + 1):
                trace.write_text("")
                for place, name in enumerate(NAMES):
                    # Each member's request goes now to one replica and now to the other.
                    which = services[(place + round_) % 2].server
                    ledger.hand_in(which.client(fed.tokens[name]), name, round_)
                stopped, before = _wait_for(trace, draw.choice(stalling.POINTS)), _fenced(services)
                os.kill(stopped, signal.SIGSTOP)
                try:
                    other = next(s for s in services if s.process.pid != stopped)
                    _published(other, fed.run.id, round_)
                finally:
                    os.kill(stopped, signal.SIGCONT)
                _goes_on(services, before)
            lost = ledger.lost(count)
    return {"tried": count, "lost": lost, "fenced": _fenced(services)}


def _goes_on(services: list[Serving], before: int) -> None:
    """Wait until the one that was stopped has been refused, or does not seem to be."""
    deadline = time.monotonic() + 20
    while _fenced(services) == before and time.monotonic() < deadline:
        time.sleep(0.05)


def _fenced(services: list[Serving]) -> int:
    return sum(service.log.read_text().count("code=fenced") for service in services)


def _wait_for(trace: Path, point: str) -> int:
    """The process that is at this point."""
    deadline = time.monotonic() + 30
    while True:
        for line in trace.read_text().splitlines():
            pid, _, passed = line.partition(" ")
            if passed == point:
                return int(pid)
        assert time.monotonic() < deadline, f"nobody came to {point!r}"
        time.sleep(0.01)


def _published(service: Serving, run_: str, round_: int) -> None:
    deadline = time.monotonic() + 60
    api = service.server.client()
    while api.whole_run(run_).rounds[round_].adapter is None:
        assert time.monotonic() < deadline, f"round {round_} was not published"
        time.sleep(0.05)
