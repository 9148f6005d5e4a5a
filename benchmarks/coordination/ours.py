"""A client of our coordinator that does what the daemon does around its training."""

import time
from typing import Any

import numpy as np

from coordination.payload import Payload, error
from coordination.serving import Seat
from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_protocol.messages import SubmitUpdate, TaskKind, UpdateMetrics
from pubswap_protocol.tensors.adapter import AdapterLayout, decode_adapter


class OurClient:
    """Sends its update, waits for the next round, and fetches the adapter."""

    def __init__(
        self,
        seat: Seat,
        layout: AdapterLayout,
        payload: Payload,
        index: int,
        buckets: tuple[str, ...] = (),
    ) -> None:
        """`buckets` are those that it may exchange bytes with directly."""
        self._seat, self._layout, self._payload = seat, layout, payload
        self._api = CoordinatorClient(seat.url, seat.token, buckets=lambda: buckets)
        self._numbers = np.load(payload.update(index))
        self._round = 0
        self._file = self._received = b""

    def prepare(self, round_: int) -> None:
        """Make another adapter for each round, because a stored one would not be sent again."""
        self._round = round_
        self._received = b""
        self._file = self._layout.header + (self._numbers + np.float32(round_)).tobytes()

    def go(self) -> dict[str, Any]:
        """Time from the adapter in memory to the next round's adapter in memory."""
        run = self._seat.run
        began = time.monotonic()
        digest = self._api.put_blob(run, self._file)
        sent = time.monotonic()
        metrics = UpdateMetrics(examples=1, steps=1)
        update = SubmitUpdate(adapter=digest, metrics=metrics)
        self._api.submit_update(run, self._round, update)
        task = self._api.task(run)
        while task.kind is not TaskKind.TRAIN or task.round <= self._round:
            task = self._api.task(run)
        assert task.adapter is not None
        notified = time.monotonic()
        self._received = self._api.blob(run, task.adapter)
        return {
            "upload": sent - began,
            "waited": notified - sent,
            "download": time.monotonic() - notified,
            "bytes": len(self._received),
        }

    def check(self) -> float:
        """The largest difference from numpy's mean."""
        received = decode_adapter(self._layout, self._received)
        expected = np.load(self._payload.mean) + np.float32(self._round)
        return error(received, expected, self._payload.megabytes)

    def close(self) -> None:
        """Close the connection."""
        self._api.__exit__()
