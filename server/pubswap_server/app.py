"""The application, and the only place where its parts are made and joined."""

import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial

from fastapi import FastAPI

from pubswap_protocol import __version__
from pubswap_protocol.verifiers import VerifierPool
from pubswap_server.clock import process_clock
from pubswap_server.conductor.background import Background
from pubswap_server.conductor.conductor import conduct
from pubswap_server.conductor.leases import Leases, forget, start_name
from pubswap_server.conductor.maintenance import keep_house
from pubswap_server.database.engine import Database, database_time, migrate
from pubswap_server.database.wakeups import wakeups_for
from pubswap_server.http import problems
from pubswap_server.http.bodies import ABOUT, TAGS
from pubswap_server.http.middleware import BodyDeadlines, InTurns, RequestChecks, RequestLog
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
from pubswap_server.monitoring import event_loop
from pubswap_server.monitoring.metrics import Metrics
from pubswap_server.monitoring.readiness import (
    Readiness,
    conductor_turns,
    database_answers,
    disk_has_room,
    store_answers,
)
from pubswap_server.notifications import ChangeNotifier
from pubswap_server.rate_limits import request_limits
from pubswap_server.runs import events
from pubswap_server.runs.auth import sha256
from pubswap_server.runs.heartbeats import WriteBehind
from pubswap_server.services import Services
from pubswap_server.settings import ServerSettings, operator_token
from pubswap_server.storage.opening import make_storage
from pubswap_server.web import forms, pages
from pubswap_server.web.rendering import ImmutableFiles

# Processes for verifiers that could hang, one of them for quick answers; they start when needed.
VERIFIER_WORKERS = max(2, (os.cpu_count() or 1) // 4)


def create_app(settings: ServerSettings) -> FastAPI:
    """The coordinator; its database and folders are opened when it starts."""
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Services]]:
        async with _running(settings, metrics) as services:
            app.state.services = services
            yield {"services": services}  # for connections, which have no application

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
    for group in (
        health,
        runs,
        members,
        rounds,
        uploads,
        blobs,
        exchanges,
        viewers,
        pages,
        forms,
    ):
        app.include_router(group.router)
    app.mount("/static", ImmutableFiles())
    problems.install(app)
    app.add_middleware(RequestChecks, proxy_secret=settings.proxy_secret)
    app.add_middleware(RequestLog, metrics=metrics)
    app.add_middleware(BodyDeadlines, idle_seconds=settings.idle_seconds)
    app.add_middleware(InTurns)
    return app


@contextlib.asynccontextmanager
async def _running(settings: ServerSettings, metrics: Metrics) -> AsyncIterator[Services]:
    """The parts, opened and at work; closed in the end."""
    url, replica = settings.sqlalchemy_url, start_name()
    migrate(url)
    wakeups = wakeups_for(url, replica, settings.workers)
    services = _joined(settings, metrics, Database(url, wakeups), replica)
    database = services.database
    database.on_change = services.changes.notify
    if database.shared:
        process_clock().set(await database.read(database_time))
    elif settings.workers == 1:
        await database.write(forget)
    process_clock().not_before(await database.read(events.latest))
    services.background = Background(
        {
            "conductor": conduct(services),
            "event loop": event_loop.watch(metrics),
            "housekeeping": keep_house(services),
            "hints": services.heartbeats.flush_for_ever(),
            "verification": services.verification.run(),
            "wakeups": wakeups.listen(services.changes.notify),
            "webhook": services.webhook.send_for_ever(),
        }
    )
    try:
        yield services
    finally:
        await services.background.stop()
        await services.heartbeats.flush()
        services.verifiers.close()
        database.close()
        services.incoming.close()


def _joined(
    settings: ServerSettings, metrics: Metrics, database: Database, replica: str
) -> Services:
    storage, changes = make_storage(settings), ChangeNotifier()
    return Services(
        settings=settings,
        operator_sha256=sha256(operator_token(settings)),
        database=database,
        incoming=storage.incoming,
        blobs=storage.blobs,
        uploads=storage.uploads,
        presigned=storage.presigned,
        verifiers=VerifierPool(VERIFIER_WORKERS, settings.verifier_seconds),
        metrics=metrics,
        changes=changes,
        heartbeats=WriteBehind(database),
        leases=Leases(replica, settings.lease_seconds),
        limits=request_limits(settings.member_requests_per_second),
        readiness=Readiness(
            {
                "database": partial(database_answers, database),
                "blob store": partial(store_answers, storage.blobs),
                "disk": partial(disk_has_room, settings.data_dir, settings.spare_bytes),
                "conductor": partial(conductor_turns, changes, settings.tick_seconds),
            }
        ),
    )
