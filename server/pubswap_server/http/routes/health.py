"""Liveness, readiness, metrics, and the version handshake."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from pubswap_protocol import __version__, paths
from pubswap_protocol.errors import Unavailable
from pubswap_protocol.messages import Version
from pubswap_server.http.dependencies import ServicesDep
from pubswap_server.http.plain_json import PlainJsonRoute

router = APIRouter(tags=["health"], route_class=PlainJsonRoute)


@router.get(paths.HEALTH, summary="Liveness")
async def health() -> dict[str, str]:
    """Answers while the process is alive."""
    return {"status": "ok"}


@router.get(paths.READY, summary="Readiness")
async def ready(services: ServicesDep) -> dict[str, str]:
    """503 with the reasons: database, blob store, a nearly full disk, or the conductor."""
    reasons = await services.readiness.reasons()
    if reasons:
        raise Unavailable(f"Not ready: {'; '.join(reasons)}.")
    return {"status": "ready"}


@router.get(paths.METRICS, summary="Prometheus metrics", response_class=PlainTextResponse)
async def metrics(services: ServicesDep) -> Response:
    """In the Prometheus exposition format."""
    await services.database.read(services.metrics.read_rows)
    return Response(services.metrics.text(), media_type="text/plain; version=0.0.4")


@router.get(paths.VERSION, summary="Handshake")
async def version() -> Version:
    """Software and protocol version, for a client's first request."""
    return Version(software=__version__, protocol=paths.PROTOCOL_VERSION)
