"""How uvicorn is to serve the application: TLS, deadlines, and whom it believes about addresses."""

from typing import Any

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.guarded_protocol import HeadLimits, guarded_protocol
from pubswap_server.settings import ServerSettings


def http_options(settings: ServerSettings) -> dict[str, Any]:
    """What to give `uvicorn.Config`; raises InvalidSettings for half a pair of TLS files."""
    return {
        # Not uvicorn's other one, h11: it parses in Python, and uploads come at half the speed.
        "http": guarded_protocol(_limits(settings)),
        "ws": "none",
        "server_header": False,
        "forwarded_allow_ips": settings.trusted_proxies,
        **_tls(settings),
    }


def _limits(settings: ServerSettings) -> HeadLimits:
    return HeadLimits(
        seconds=settings.header_seconds,
        bytes=settings.max_header_bytes,
        idle_seconds=settings.idle_seconds,
    )


def _tls(settings: ServerSettings) -> dict[str, str]:
    if settings.tls_cert is None and settings.tls_key is None:
        return {}
    if settings.tls_cert is None or settings.tls_key is None:
        raise InvalidSettings("TLS needs both: --tls-cert CHAIN.pem --tls-key KEY.pem.")
    for path in (settings.tls_cert, settings.tls_key):
        if not path.is_file():
            raise InvalidSettings(f"The TLS file {path} is not there.")
    return {"ssl_certfile": str(settings.tls_cert), "ssl_keyfile": str(settings.tls_key)}
