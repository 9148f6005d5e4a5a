"""The coordinator's real application in this process, reached without a socket."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, Self

import httpx

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_server.app import create_app
from pubswap_server.settings import ServerSettings, operator_token
from pubswap_simulation.shared_policy import Stopped

URL = "http://coordinator"

# Nobody is at the other end of a wire: a request fails for a busy database at most.
BACKOFF = Backoff(base_seconds=0.1, tries=5)


class Coordinator:
    """The application on an event loop in a thread of its own; a context manager."""

    def __init__(self, folder: Path) -> None:
        """Keep everything in `folder`."""
        self._settings = coordinator_settings(folder)
        self._app = create_app(self._settings)
        self._asgi = httpx.ASGITransport(self._app)
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._stopped = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def client(self, token: str | None = None) -> CoordinatorClient:
        """A client of this coordinator, as any other but for its transport."""
        return CoordinatorClient(URL, token, BACKOFF, _Bridge(self))

    def operator(self) -> CoordinatorClient:
        """The operator's client."""
        return self.client(operator_token(self._settings))

    def flush(self) -> None:
        """Have what is written late written now, such as the bytes of downloads."""
        self.call(self._app.state.services.heartbeats.flush())

    def stop(self) -> None:
        """End every request that waits, and take no more: who asks gets Stopped."""
        with self._lock:
            self._stopped = True
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A coroutine's result, from any other thread; raises Stopped in the end."""
        with self._lock:
            if self._stopped:
                work.close()
                raise Stopped
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._pending.add(future)
        try:
            return future.result()
        except CancelledError:
            raise Stopped from None
        finally:
            with self._lock:
                self._pending.discard(future)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        """The application's answer to a request whose body has been read."""
        reply = await self._asgi.handle_async_request(request)
        body = await reply.aread()
        stream = httpx.ByteStream(body)
        return httpx.Response(reply.status_code, headers=reply.headers, stream=stream)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        async with self._app.router.lifespan_context(self._app):
            self._ready.set_result(asyncio.get_running_loop())
            await self._end.wait()


class _Bridge(httpx.BaseTransport):
    """From a thread's blocking request to the event loop and back."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, as soon as the application gives it."""
        request.read()
        answer: httpx.Response = self._coordinator.call(self._coordinator.answer(request))
        return answer


def coordinator_settings(folder: Path) -> ServerSettings:
    """A coordinator for one run and nobody else: whatever the environment says, nothing outside
    `folder` is used, and members may ask as fast as they can."""
    return ServerSettings(
        data_dir=folder,
        database_url=f"sqlite:///{folder / 'pubswap.sqlite'}",
        blob_url=None,
        operator_token=None,
        require_client_certificate=False,
        member_requests_per_second=1e6,
        workers=1,
    )
