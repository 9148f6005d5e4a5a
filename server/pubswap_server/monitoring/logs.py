"""The coordinator's log: structlog events as standard-library log records."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from pubswap_protocol.command_line.logs import Form, log_to, values

REQUEST = "request"  # the line of a request that was answered

# uvicorn's warnings that any client can trigger; they do not name it, or suggest adding websockets.
_NOISE = ("Unsupported upgrade", "No supported WebSocket", "Invalid HTTP request")


def configure_logs(form: Form, level: str, stream: TextIO = sys.stderr) -> logging.Handler:
    """Write all log lines of this process to `stream`, each with its request's context."""
    handler = log_to(stream, form, level)
    handler.addFilter(_with_context)
    if form == "console" and level != "debug":
        handler.addFilter(lambda record: not _is_routine(record))
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: not record.getMessage().startswith(_NOISE)
    )
    structlog.configure(
        processors=[_as_record],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return handler


def _with_context(record: logging.LogRecord) -> bool:
    """Add structlog's bound values, also to records of uvicorn and other libraries."""
    bound = structlog.contextvars.get_contextvars()
    vars(record).update(values(**bound | getattr(record, "values", {})))
    return True


def _is_routine(record: logging.LogRecord) -> bool:
    """Whether it is the line of a request that succeeded; a run has hundreds in a minute."""
    return record.getMessage() == REQUEST and getattr(record, "values", {}).get("status", 500) < 400


def _as_record(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Turn a structlog event into the standard library's logging arguments."""
    arguments = {key: event.pop(key) for key in ("exc_info", "stack_info") if key in event}
    return {"msg": event.pop("event"), "extra": values(**event), **arguments}
