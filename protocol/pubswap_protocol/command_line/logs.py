"""Log lines of every long-lived process: one form for people, one for machines."""

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from pubswap_protocol.bounds import escaped

Form = Literal["console", "json"]

# A record's attribute with what its words do not say: log.info("step", extra=values(round=1)).
_VALUES = "values"


def values(**fields: Any) -> dict[str, Any]:
    """What a log line says by name, for the `extra` of a call."""
    return {_VALUES: fields}


class Lines(logging.Formatter):
    """`TIME level event key=value …`, or one JSON object a line."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """One line; for people, a traceback follows on lines of its own."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        time = time.replace("+00:00", "Z")
        level, event = record.levelname.lower(), record.getMessage()
        fields: dict[str, Any] = getattr(record, _VALUES, {})
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._form == "json":
            ours = {"event": event, "level": level, "timestamp": time}
            ours |= {"exception": trace} if trace else {}
            fields = {name: _sayable(value) for name, value in fields.items()}
            return _json(fields | ours)
        pairs = [f"{name}={_shown(str(value), spaces=False)}" for name, value in fields.items()]
        line = " ".join([time, f"{level:8}", _shown(event, spaces=True), *pairs])
        return f"{line}\n{trace}" if trace else line


def _sayable(value: Any) -> Any:
    """JSON has no word for numbers that are none."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown(text: str, *, spaces: bool) -> str:
    """The text in quotes where it would not be one word, or could pass for another line."""
    plain = text.isprintable() and (spaces or (text != "" and not set(text) & set(' "=')))
    return text if plain else _json(text)


def _json(value: Any) -> str:
    return escaped(json.dumps(value, default=str, ensure_ascii=False))


def log_to(stream: TextIO, form: Form = "console", level: str = "info") -> logging.Handler:
    """Have all of this process's log lines written there."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines(form))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for name in ("httpx", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler
