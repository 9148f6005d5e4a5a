"""What one check has found, and what is to be done about it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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


FIT = (Status.OK, Status.WARNING)


class Record:
    """Findings in the order of the checks."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, finding: Finding) -> None:
        """One more."""
        self.findings.append(finding)

    def skip(self, needs: str, *names: str) -> None:
        """These checks cannot be made without what `needs` names."""
        self.findings += [skipped(name, needs) for name in names]

    def note(self, name: str, check: Callable[[], Finding]) -> None:
        """A check's finding; an error in it is one too."""
        with self.guarded(name):
            self.add(check())

    @contextmanager
    def guarded(self, name: str, advice: str = "") -> Iterator[None]:
        """Inside, an error is the failure of the check `name`, and the others go on."""
        try:
            yield
        except Exception as error:
            self.add(of_error(name, error, advice))

    def all(self, *names: str, well: tuple[Status, ...]) -> bool:
        """Whether these checks ended in one of these ways."""
        return all(found.status in well for found in self.findings if found.name in names)
