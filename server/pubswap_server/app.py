"""The ASGI application: routes, middleware and background tasks."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from pubswap_protocol import __version__
from pubswap_protocol.errors import PubSwapError
from pubswap_server.clock import process_clock
from pubswap_server.conductor.conductor import conduct
from pubswap_server.conductor.leases import forget, start_name
from pubswap_server.conductor.maintenance import keep_house, remember_kept
from pubswap_server.database.engine import Database, database_time, migrate
from pubswap_server.database.wakeups import wakeups_for
from pubswap_server.http import problems
from pubswap_server.http.bodies import ABOUT, TAGS
from pubswap_server.http.middleware import BodyDeadlines, RequestChecks, RequestLog, RequestThrottle
from pubswap_server.http.openapi import Documented
from pubswap_server.http.routes import (
    blobs,
    exchanges,
    health,
    members,
    rounds,
    runs,
    uploads,
    viewers,
)
from pubswap_server.monitoring.metrics import Metrics, watch_loop
from pubswap_server.runs import events
from pubswap_server.runs.runs import ask_again
from pubswap_server.services import Services
from pubswap_server.settings import ServerSettings
from pubswap_server.web import comparing, drafting, forms, own_run, pages
from pubswap_server.web.rendering import STATIC

log = structlog.get_logger(__name__)

# Routes are tried in this order, so those that members call most come first.
GROUPS = (
    exchanges,
    uploads,
    rounds,
    blobs,
    members,
    health,
    runs,
    viewers,
    comparing,
    drafting,
    pages,
    forms,
    own_run,
)


def create_app(settings: ServerSettings) -> FastAPI:
    """Create the coordinator's application. Its database and folders open when it starts."""
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with _running(settings, metrics) as services:
            app.state.services = services
            yield

    app = Documented(
        title="PubSwap coordinator",
        version=__version__,
        description=ABOUT,
        contact={"name": "The operator of this coordinator"},
        servers=[{"url": "/"}],
        openapi_tags=TAGS,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    for group in GROUPS:
        app.include_router(group.router)
    app.include_router(drafting.uploads)
    app.mount("/static", StaticFiles(directory=STATIC))
    problems.install(app)
    app.add_middleware(RequestChecks)
    app.add_middleware(RequestLog, metrics=metrics)
    app.add_middleware(BodyDeadlines)
    app.add_middleware(RequestThrottle)
    return app


@contextlib.asynccontextmanager
async def _running(settings: ServerSettings, metrics: Metrics) -> AsyncIterator[Services]:
    """Open the services, run the background tasks, and close everything at the end."""
    url, replica = settings.sqlalchemy_url, start_name()
    migrate(url)
    wakeups = wakeups_for(url, replica, settings.workers)
    database = Database(url, wakeups)
    services = Services(settings, metrics, database, replica)
    database.on_change = services.changes.notify
    if database.shared:
        process_clock().set(await database.read(database_time))
    elif settings.workers == 1:
        await database.write(forget)
    process_clock().advance_to(await database.read(events.latest))
    process_clock().listen()
    await database.write(ask_again)
    services.background = asyncio.create_task(
        _together(
            {
                "conductor": conduct(services),
                "event loop": watch_loop(metrics),
                "housekeeping": keep_house(services),
                "hints": services.heartbeats.flush_for_ever(),
                "verification": services.verification.run(),
                "wakeups": wakeups.listen(services.changes.heard),
                "webhook": services.webhook.send_for_ever(),
            }
        )
    )
    try:
        with _at_the_end(services.changes.close):
            yield services
    finally:
        services.background.cancel()
        await asyncio.gather(services.background, return_exceptions=True)
        await services.heartbeats.flush()
        with contextlib.suppress(PubSwapError):  # what is not remembered stays for some days
            await remember_kept(services)
        services.verifiers.close()
        database.close()
        services.incoming.close()


@contextlib.contextmanager
def _at_the_end(wake: Callable[[], None]) -> Iterator[None]:
    """Also call `wake` when a signal stops the server: long polls would delay the end.

    The server waits for them before it ends the application's lifespan.
    """
    if threading.current_thread() is not threading.main_thread():  # as in tests: no signals here
        yield
        return
    loop = asyncio.get_running_loop()

    def wake_and(handler: Any, number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(wake)
        handler(number, frame)

    servers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in servers.items():
        if callable(handler):
            signal.signal(number, partial(wake_and, handler))
    yield  # the server puts back the handlers that it found


async def _together(works: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run these tasks, by name, until one ends or this is cancelled.

    If one ends, the others are cancelled and the process exits. Its supervisor then starts another
    process, which takes its decisions from the database again.
    """
    async with asyncio.TaskGroup() as group:
        for name, work in works.items():
            group.create_task(_for_ever(name, work))


async def _for_ever(name: str, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
        raise RuntimeError("the task returned")
    except Exception as error:
        # Only the first line, because database errors go on with statements and parameters.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        log.critical("a background task died, so this process ends", task=name, error=reason)
        log.debug("traceback of the dead task", task=name, exc_info=True)
        raise
