"""The findings of checks, and what to do about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from pubswap_protocol.bounds import printable
from pubswap_protocol.errors import PubSwapError


class Outcome(StrEnum):
    """How a check ended; SKIPPED means that another check must succeed first."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` is the next thing to do, where there is one."""

    outcome: Outcome
    found: str
    advice: str = ""

    @property
    def good(self) -> bool:
        return self.outcome in (Outcome.OK, Outcome.WARNING)


def ok(found: str) -> Finding:
    return Finding(Outcome.OK, found)


def warning(found: str, advice: str) -> Finding:
    """A finding with which training works, but not as well as it might."""
    return Finding(Outcome.WARNING, found, advice)


def failure(found: str, advice: str) -> Finding:
    """A finding with which training would not start, or would be useless."""
    return Finding(Outcome.FAILURE, found, advice)


def skipped(needs: str) -> Finding:
    return Finding(Outcome.SKIPPED, f"not checked: it needs {needs}")


def of_error(error: Exception, advice: str = "") -> Finding:
    """Convert an error to a failure. The details of PubSwap's errors say what to do; `advice`, if
    given, says it better.
    """
    if not isinstance(error, PubSwapError):
        text = f"{type(error).__name__}: {error}"
        return failure(text, advice or "This is an unexpected error; please report this message.")
    if advice:
        return failure(error.detail, advice)
    found, _, todo = error.detail.partition(". ")
    return failure(found, todo) if todo else failure(error.title(), error.detail)


_LOOKS = {
    Outcome.OK: ("✓ ok", "green"),
    Outcome.WARNING: ("! warning", "yellow"),
    Outcome.FAILURE: ("✗ failure", "bold red"),
    Outcome.SKIPPED: ("- skipped", "dim"),
}


@dataclass(frozen=True)
class Checklist:
    """All findings by the checks' names, in their order."""

    findings: Mapping[str, Finding]
    following: str = "pubswap client start, with the same options"  # what comes next

    def count(self, outcome: Outcome) -> int:
        return sum(finding.outcome is outcome for finding in self.findings.values())

    @property
    def healthy(self) -> bool:
        return not self.count(Outcome.FAILURE)

    def rendered(self) -> RenderableType:
        """The table, and one line that sums it up."""
        found, todo = (Column(name, overflow="fold") for name in ("found", "what to do"))
        table = Table("check", "", found, todo, show_lines=True)
        for name, finding in self.findings.items():
            words, style = _LOOKS[finding.outcome]
            # Text, not markup: paths, ids and texts from the coordinator may have square brackets.
            texts = (Text(printable(text)) for text in (finding.found, finding.advice))
            table.add_row(Text(name), Text(words, style), *texts)
        failures, count = self.count(Outcome.FAILURE), self.count(Outcome.WARNING)
        warnings = "1 warning" if count == 1 else f"{count} warnings"
        verdict = f"Nothing failed, {warnings}. Next: {self.following}"
        if failures:
            verdict = f"{failures} failed, {warnings}: correct what failed and try again."
        return Group(table, Text(verdict, "bold red" if failures else "green"))
