"""Structured logs, the standard library's included."""

import logging
import sys

import structlog
from structlog.typing import Processor

from pubswap_server.settings import ServerSettings

# uvicorn's words about what anybody can send, without saying who did, and how to add websockets.
_NOISE = ("Unsupported upgrade", "No supported WebSocket", "Invalid HTTP request")


def configure_logs(settings: ServerSettings) -> None:
    """Write to stderr, as lines for people or as JSON."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    last: Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The default prints the local variables too, tokens and bodies among them.
            exception_formatter=structlog.dev.plain_traceback,
        )
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    for name in ("httpx", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: not record.getMessage().startswith(_NOISE)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
