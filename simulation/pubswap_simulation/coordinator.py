"""The coordinator's real application in this process, reached without a socket."""

import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
from anyio.from_thread import start_blocking_portal

from pubswap_client.coordinator.client import CoordinatorClient
from pubswap_client.coordinator.retry import Backoff
from pubswap_server.app import create_app
from pubswap_server.runs.runs import by_id
from pubswap_server.settings import ServerSettings, operator_token, sqlite_url
from pubswap_simulation.shared_policy import Stopped

URL = "http://coordinator"

# There is no network: a request can fail only because the database is busy.
BACKOFF = Backoff(base_seconds=0.1, tries=5)


class Coordinator:
    """The application on an event loop in a thread of its own; a context manager."""

    def __init__(self, folder: Path) -> None:
        """Keep everything in `folder`."""
        self._settings = coordinator_settings(folder)
        self._app = create_app(self._settings)
        self._transport = _InProcessTransport(self, httpx.ASGITransport(self._app))
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._stopped = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal(name="coordinator"))
            lifespan = self._app.router.lifespan_context(self._app)
            stack.enter_context(self._portal.wrap_async_context_manager(lifespan))
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def client(self, token: str | None = None) -> CoordinatorClient:
        """A client of this coordinator, like any other except for its transport."""
        return CoordinatorClient(URL, token, BACKOFF, self._transport)

    def operator(self) -> CoordinatorClient:
        """The operator's client."""
        return self.client(operator_token(self._settings))

    def flush(self) -> None:
        """Flush the write-behind buffer, which holds for example the bytes of downloads."""
        self.call(self._app.state.services.heartbeats.flush())

    def failure(self, run: str) -> str | None:
        """Why a run cannot go on, after several tries, or None while it can."""
        database = self._app.state.services.database
        failure: str | None = self.call(database.read(lambda session: by_id(session, run).failure))
        return failure

    def stop(self) -> None:
        """Cancel pending requests and refuse later ones; their callers get Stopped."""
        with self._lock:
            self._stopped = True
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine from another thread and return its result. Raises Stopped."""
        with self._lock:
            if self._stopped:
                work.close()
                raise Stopped
            future: Future[Any] = self._portal.start_task_soon(lambda: work)
            self._pending.add(future)
        try:
            return future.result()
        except CancelledError:
            raise Stopped from None
        finally:
            with self._lock:
                self._pending.discard(future)


class _InProcessTransport(httpx.BaseTransport):
    """Pass a thread's blocking request to the event loop and its response back."""

    def __init__(self, coordinator: Coordinator, asgi: httpx.ASGITransport) -> None:
        self._coordinator = coordinator
        self._asgi = asgi

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The application's whole response."""
        request.read()
        response: httpx.Response = self._coordinator.call(self._answer(request))
        return response

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        response = await self._asgi.handle_async_request(request)
        stream = httpx.ByteStream(await response.aread())
        return httpx.Response(response.status_code, headers=response.headers, stream=stream)


def coordinator_settings(folder: Path) -> ServerSettings:
    """Settings of a coordinator for one run only: whatever the environment says, it uses nothing
    outside `folder`, and members may send requests as fast as they can."""
    return ServerSettings(
        data_dir=folder,
        database_url=sqlite_url(folder / "pubswap.sqlite"),
        blob_url=None,
        bucket_endpoint=None,
        notify_url=None,
        operator_token=None,
        member_requests_per_second=1e6,
        workers=1,
    )
