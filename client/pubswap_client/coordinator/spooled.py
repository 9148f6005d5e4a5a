"""A daemon's side of a relay: write each request to a file, and wait for its answer."""

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import httpx
from pydantic import ValidationError

from pubswap_client.coordinator.spool import (
    ANSWER,
    REQUEST,
    Answered,
    Asked,
    Refused,
    body,
    look_again,
    private_folder,
    read,
    write,
)

log = logging.getLogger(__name__)

RELAY_SECONDS = 600.0  # for an answer; a relay started by cron runs every few minutes
_QUICK, _SLOW = 0.01, 0.5  # seconds between two looks
_MISSED_SECONDS = 60.0


def relay_folder() -> Path | None:
    """The folder from which a relay takes requests: PUBSWAP_RELAY in the environment."""
    folder = os.environ.get("PUBSWAP_RELAY")
    return Path(folder) if folder else None


class Spooled(httpx.BaseTransport):
    """An httpx transport to one coordinator through files in a folder instead of the network.

    It raises httpx's errors, so that they are retried like network errors. A request that is given
    up is withdrawn.
    """

    def __init__(self, folder: Path, coordinator: httpx.URL) -> None:
        self._folder = private_folder(folder)
        self._origin = (coordinator.scheme, coordinator.netloc)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer; its body is streamed from the file."""
        if (request.url.scheme, request.url.netloc) != self._origin:
            raise httpx.ConnectError(f"a relay cannot reach {request.url.host}", request=request)
        assert isinstance(request.stream, httpx.SyncByteStream)
        name = secrets.token_hex(16)
        asked = self._folder / f"{name}{REQUEST}"
        answered = self._folder / f"{name}{ANSWER}"
        try:
            message = Asked(
                name=name,
                method=request.method,
                target=request.url.raw_path.decode("ascii"),
                headers=request.headers.multi_items(),
            )
            write(asked, request.stream, message)
            answer, file, size = self._answer(answered, request)
        except (OSError, Refused, ValidationError) as error:
            raise httpx.ConnectError(f"{self._folder}: {error}", request=request) from None
        finally:
            # In this order: without its answer beside it, a request may be forwarded again.
            for path in (asked, answered):
                with suppress(OSError):
                    path.unlink()
        stream = _Body(file, size, answer.cut)
        return httpx.Response(answer.status, headers=answer.headers, stream=stream)

    def _answer(self, path: Path, request: httpx.Request) -> tuple[Answered, BinaryIO, int]:
        began, pause, missed = time.monotonic(), _QUICK, False
        seconds = request.extensions["timeout"]["read"]
        while True:
            with suppress(FileNotFoundError):
                return read(path, Answered)
            waited = time.monotonic() - began
            if waited > seconds:
                raise httpx.ReadTimeout(
                    f"no relay has answered in {self._folder} for {seconds:.0f} s; start "
                    f"`pubswap relay` on a machine with network access",
                    request=request,
                )
            if waited > _MISSED_SECONDS and not missed:
                missed = True
                log.warning("No answer in %s yet; is `pubswap relay` running?", self._folder)
            time.sleep(pause)
            pause = min(1.5 * pause, _SLOW)
            look_again(self._folder)


class _Body(httpx.SyncByteStream):
    """An answer's body, cut where the coordinator's was."""

    def __init__(self, file: BinaryIO, size: int, cut: bool) -> None:
        self._file, self._size, self._cut = file, size, cut

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from body(self._file, self._size)
        except OSError as error:
            raise httpx.ReadError(str(error)) from None
        if self._cut:
            raise httpx.ReadError("the coordinator's answer to the relay was cut")

    def close(self) -> None:
        self._file.close()
