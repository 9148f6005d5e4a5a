"""The application, and the only place where its parts are made and joined."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from pubswap_protocol import __version__
from pubswap_protocol.errors import Problem
from pubswap_protocol.paths import PROBLEM_TYPE
from pubswap_protocol.verifiers import VerifierPool
from pubswap_server import problem_json
from pubswap_server.auth import sha256
from pubswap_server.conductor import conduct
from pubswap_server.database import Database, migrate
from pubswap_server.housekeeping import keep_house
from pubswap_server.limits import Buckets, Rate, RequestLimits
from pubswap_server.metrics import Metrics
from pubswap_server.middleware import Guarded, Observed
from pubswap_server.readiness import Readiness, checks_of
from pubswap_server.routes import blobs, health, members, rounds, runs, swaps, uploads
from pubswap_server.services import Services
from pubswap_server.settings import ServerSettings, operator_token
from pubswap_server.storage.making import make_storage

_PROBLEM = {"model": Problem, "content": {PROBLEM_TYPE: {}}, "description": "What went wrong."}


def create_app(settings: ServerSettings) -> FastAPI:
    """The coordinator; its database and folders are opened when it starts."""
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        migrate(settings.sqlalchemy_url)
        storage = make_storage(settings)
        database = Database(settings.sqlalchemy_url)
        services = Services(
            settings=settings,
            operator_sha256=sha256(operator_token(settings)),
            database=database,
            incoming=storage.incoming,
            blobs=storage.blobs,
            uploads=storage.uploads,
            verifiers=VerifierPool(settings.verifier_workers, settings.verifier_seconds),
            metrics=metrics,
            limits=RequestLimits(
                Buckets(Rate(settings.member_requests_per_second, settings.member_burst)),
                Buckets(Rate(settings.failures_per_second, settings.failure_burst)),
            ),
            readiness=Readiness(
                checks_of(database, storage.blobs, settings.data_dir, settings.spare_bytes)
            ),
        )
        app.state.services = services
        tasks = [asyncio.create_task(work(services)) for work in (conduct, keep_house)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            services.verifiers.close()
            services.database.close()
            storage.incoming.close()

    app = FastAPI(
        title="PubSwap coordinator",
        version=__version__,
        description="Federated RLVR: runs, rounds, exchanges. Errors are problem+json with `code`.",
        lifespan=lifespan,
        responses={"4XX": _PROBLEM, "5XX": _PROBLEM},
        docs_url=None,
        redoc_url=None,
    )
    for group in (health, runs, members, rounds, uploads, blobs, swaps):
        app.include_router(group.router)
    problem_json.install(app)
    app.add_middleware(
        Guarded, max_json_bytes=settings.max_json_bytes, proxy_secret=settings.proxy_secret
    )
    app.add_middleware(Observed, metrics=metrics)
    return app
