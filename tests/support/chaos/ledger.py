"""The receipts of a federation of fake members, to check against what the coordinator has."""

import numpy as np

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol.digests import digest_of
from pubswap_protocol.messages import Event, SubmitUpdate, UpdateMetrics
from pubswap_protocol.tensors.adapter import Adapter, encode_adapter
from support.coordinator.coordinator import Federation


class ReceiptLedger:
    """The receipts of a run's members, whose updates are a function of seed, round and name."""

    def __init__(self, fed: Federation, names: tuple[str, ...], seed: int) -> None:
        self.run = fed.run.id
        self._fed, self._names, self._seed = fed, names, seed
        self.receipts: dict[tuple[int, str], str] = {}

    def hand_in(self, api: CoordinatorClient, name: str, round_: int) -> None:
        """Send a member's update of a round, and note the receipt once it arrives."""
        layout = self._fed.run.model.layout
        digest = api.put_blob(self._fed.run.id, encode_adapter(layout, self._update(name, round_)))
        metrics = UpdateMetrics(examples=1, steps=self._fed.run.settings.local_steps)
        update = SubmitUpdate(adapter=digest, metrics=metrics)
        receipt = api.submit_update(self._fed.run.id, round_, update)
        self.receipts[round_, name] = receipt.status

    def lost(self, rounds: int) -> int:
        """Number of receipts and of means, in the first `rounds` rounds, that do not hold."""
        view = self._fed.view()
        events = self._events()
        lost = 0
        for round_ in range(1, rounds + 1):
            updates = [e for e in events if e.kind == "update" and e.details["round"] == round_]
            counted = {e.details["member"] for e in updates if not e.details["late"]}
            for name in self._names:
                lost += self.receipts.get((round_, name)) == "accepted" and name not in counted
            lost += len(updates) != len({e.details["member"] for e in updates})
            lost += view.rounds[round_].adapter != self._mean(round_)
        published = [e.details["adapter"] for e in events if e.kind == "aggregated"]
        return lost + sum(
            published.count(view.rounds[round_].adapter) != 1 for round_ in range(1, rounds + 1)
        )

    def _events(self) -> list[Event]:
        events: list[Event] = []
        while True:
            more = self._fed.operator.events(self._fed.run.id, events[-1].id if events else 0)
            if not more.events:
                return events
            events += more.events

    def _update(self, name: str, round_: int) -> Adapter:
        return self._fed.adapter(hash_of(self._seed, name, round_))

    def _mean(self, round_: int) -> str:
        """The digest that the round's adapter would have without any faults."""
        updates = [self._update(name, round_) for name in sorted(self._names)]
        mean: Adapter = {}
        for tensor in updates[0]:
            total = np.zeros(updates[0][tensor].shape)
            for update in updates:
                total += (1 / len(updates)) * update[tensor].astype(np.float64)
            mean[tensor] = total.astype(np.float32)
        return digest_of(encode_adapter(self._fed.run.model.layout, mean))


def hash_of(*parts: object) -> int:
    """A seed derived from several values."""
    return int(digest_of(repr(parts).encode())[-8:], 16)
