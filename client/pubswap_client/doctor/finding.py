"""What one check has found, and what is to be done about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pubswap_protocol.errors import PubSwapError

_NAMED = 5


class Status(StrEnum):
    """How bad it is; SKIPPED means that another check must succeed first."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` is the next thing to do, where there is one."""

    name: str
    status: Status
    found: str
    advice: str = ""


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name, Status.OK, found)


def warning(name: str, found: str, advice: str) -> Finding:
    """Training goes, but not as it might."""
    return Finding(name, Status.WARNING, found, advice)


def failure(name: str, found: str, advice: str) -> Finding:
    """Training would not start, or be for nothing."""
    return Finding(name, Status.FAILURE, found, advice)


def skipped(name: str, needs: str) -> Finding:
    """It could not be checked without what `needs` names."""
    return Finding(name, Status.SKIPPED, f"not checked: it needs {needs}")


def of_error(name: str, error: Exception, advice: str = "") -> Finding:
    """The failure that an error stands for. Our errors' details say what to do; `advice`, where
    it is given, says it better.
    """
    if not isinstance(error, PubSwapError):
        text = f"{type(error).__name__}: {error}"
        return failure(name, text, advice or "This was not foreseen; tell us this message.")
    if advice:
        return failure(name, error.detail, advice)
    return failure(name, error.title(), error.detail)


def named(items: Iterable[object]) -> str:
    """The first few of some things: `3, 17, 20 and 5 more`."""
    texts = [str(item) for item in items]
    more = len(texts) - _NAMED
    return ", ".join(texts[:_NAMED]) + (f" and {more} more" if more > 0 else "")
