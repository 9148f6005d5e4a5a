"""Log lines of long-running processes, in one form for people and one for machines."""

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from pubswap_protocol.bounds import escaped

Form = Literal["console", "json"]

# The attribute of a record with its named values: log.info("step", extra=values(round=1)).
_VALUES = "values"


def values(**fields: Any) -> dict[str, Any]:
    """The named values of a log line, for the `extra` of a call."""
    return {_VALUES: fields}


class Lines(logging.Formatter):
    """`TIME level event key=value …`, or one JSON object a line."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """One line; in the form for people, a traceback follows on its own lines."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        time = time.replace("+00:00", "Z")
        level, event = record.levelname.lower(), record.getMessage()
        fields: dict[str, Any] = getattr(record, _VALUES, {})
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._form == "json":
            standard = {"event": event, "level": level, "timestamp": time}
            standard |= {"exception": trace} if trace else {}
            fields = {name: _sayable(value) for name, value in fields.items()}
            return _json(fields | standard)
        pairs = [f"{name}={_shown(str(value), spaces=False)}" for name, value in fields.items()]
        line = " ".join([time, f"{level:8}", _shown(event, spaces=True), *pairs])
        return f"{line}\n{trace}" if trace else line


def _sayable(value: Any) -> Any:
    """Convert NaN and infinity to text, because JSON cannot express them."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown(text: str, *, spaces: bool) -> str:
    """Quote a text that is not one word, or that could pass for another line."""
    plain = text.isprintable() and (spaces or (text != "" and not set(text) & set(' "=')))
    return text if plain else _json(text)


def _json(value: Any) -> str:
    return escaped(json.dumps(value, default=str, ensure_ascii=False))


def log_to(stream: TextIO, form: Form = "console", level: str = "info") -> logging.Handler:
    """Write all of this process's log lines to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines(form))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for name in ("httpx", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler
