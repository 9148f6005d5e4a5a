"""The floor's client: http.client, which sends from and receives into one buffer."""

import time
from http.client import HTTPConnection
from typing import Any

import numpy as np
from coordination.payload import Payload


class FloorClient:
    """Sends its update, and fetches the mean."""

    def __init__(self, port: int, payload: Payload, index: int) -> None:
        self._http = HTTPConnection("127.0.0.1", port, blocksize=1 << 20)
        self._payload, self._index = payload, index
        self._numbers = np.load(payload.update(index))
        self._received = np.empty_like(self._numbers)
        self._sent = self._numbers
        self._round = 0

    def prepare(self, round_: int) -> None:
        """Make another adapter for each round, like our client."""
        self._round = round_
        self._sent = self._numbers + np.float32(round_)
        self._received[:] = 0

    def go(self) -> dict[str, Any]:
        """Time from the numbers in memory to the mean in memory."""
        began = time.monotonic()
        body = memoryview(self._sent).cast("B")
        self._http.request("PUT", f"/{self._round}/{self._index}", body=body)
        reply = self._http.getresponse()
        reply.read()
        assert reply.status == 201, reply.status
        sent = time.monotonic()
        self._http.request("GET", f"/{self._round}")
        reply = self._http.getresponse()
        view = memoryview(self._received).cast("B")
        filled = 0
        while filled < len(view) and (count := reply.readinto(view[filled:])):
            filled += count
        assert filled == len(view), f"{filled} of {len(view)} bytes arrived"
        return {"upload": sent - began, "download": time.monotonic() - sent, "bytes": filled}

    def check(self) -> float:
        """The largest difference from numpy's mean."""
        expected = np.load(self._payload.mean) + np.float32(self._round)
        return float(np.abs(self._received - expected).max())

    def close(self) -> None:
        """Close the connection."""
        self._http.close()
