"""PostgreSQL is killed by SIGKILL again and again while members hand in updates."""

import random
import threading
import time
from pathlib import Path

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_client.demo.processes import free_port
from pubswap_protocol.messages import TaskKind
from support.chaos.ledger import ReceiptLedger
from support.coordinator.coordinator import begun
from support.coordinator.postgres import postgres
from support.coordinator.serving import Serving

PATIENT = Backoff(base_seconds=0.05, cap_seconds=0.5)
NAMES = ("a", "b", "c", "d")
ROUNDS = 1000


def run(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Kill it `count` times; what was `tried`, and how many promises were `lost`.

    Besides: `receipts` held against the database, `rounds` held against their exact mean, and
    `faults`, answers that were neither right nor a typed error.
    """
    draw = random.Random(seed)
    with postgres() as server:
        serving = Serving(folder, server.new_database(), free_port())
        with serving:
            serving.wait_until_ready()
            fed = begun(serving.server, method="fedavg", rounds=ROUNDS, clients=len(NAMES))
            ledger, over = ReceiptLedger(fed, NAMES, seed), threading.Event()
            members = [_Member(serving.server.url, fed.tokens[n], n, ledger, over) for n in NAMES]
            for member in members:
                member.start()
            for _ in range(count):
                _wait_for_receipt(ledger)
                time.sleep(draw.uniform(0, 0.15))
                server.kill()
                time.sleep(draw.uniform(0, 0.3))
                server.start()
            _wait_for_receipt(ledger)
            over.set()
            for member in members:
                member.join(60)
                assert not member.is_alive(), "a member hangs"
            done = min(member.round for member in members)
            fed.wait_for(done)
            lost = ledger.lost(done)
        faults = serving.log.read_text().count("request failed")
    return {
        "tried": count,
        "lost": lost,
        "receipts": len(ledger.receipts),
        "rounds": done,
        "faults": faults,
    }


def _wait_for_receipt(ledger: ReceiptLedger) -> None:
    """Each kill is in the middle of work: something was acknowledged since the one before."""
    before, deadline = len(ledger.receipts), time.monotonic() + 60
    while len(ledger.receipts) == before:
        assert time.monotonic() < deadline, "nothing is acknowledged any more"
        time.sleep(0.005)


class _Member(threading.Thread):
    """Asks for its task and hands in an update, round after round, however often it must ask."""

    def __init__(
        self, url: str, token: str, name: str, ledger: ReceiptLedger, over: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._api = CoordinatorClient(url, token, PATIENT)
        self._of, self._ledger, self._over = name, ledger, over
        self._run = ledger.run
        self.round = 0

    def run(self) -> None:
        """Until it is over, at the end of a round."""
        with self._api:
            while not self._over.is_set():
                task = self._api.task(self._run, 1)
                if task.kind is TaskKind.TRAIN:
                    assert task.round == self.round + 1
                    self._ledger.hand_in(self._api, self._of, task.round)
                    self.round = task.round
