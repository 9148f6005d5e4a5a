"""How uvicorn is to serve the application: TLS, deadlines, and whom it believes about addresses."""

from typing import Any

from pubswap_protocol.errors import InvalidSettings
from pubswap_server.guarded_protocol import guarded_protocol
from pubswap_server.pace import Limits
from pubswap_server.settings import ServerSettings


def http_options(settings: ServerSettings) -> dict[str, Any]:
    """What to give `uvicorn.Config`; raises InvalidSettings for half a pair of TLS files."""
    return {
        "http": guarded_protocol(_limits(settings)),
        "server_header": False,
        "forwarded_allow_ips": settings.trusted_proxies,
        **_tls(settings),
    }


def _limits(settings: ServerSettings) -> Limits:
    return Limits(
        header_seconds=settings.header_seconds,
        header_bytes=settings.max_header_bytes,
        idle_seconds=settings.idle_seconds,
        grace_seconds=settings.grace_seconds,
        bytes_per_second=settings.min_bytes_per_second,
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
