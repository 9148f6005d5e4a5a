"""The findings as a table for people, or as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pubswap_client.doctor.findings import Finding, Status
from pubswap_client.doctor.prediction import Prediction

_LOOKS = {
    Status.OK: ("✓ ok", "green"),
    Status.WARNING: ("! warning", "yellow"),
    Status.FAILURE: ("✗ failure", "bold red"),
    Status.SKIPPED: ("- skipped", "dim"),
}


@dataclass(frozen=True)
class Checklist:
    """All findings in the order of the checks, and the prediction if there was a trial."""

    findings: Sequence[Finding]
    prediction: Prediction | None = None

    def count(self, status: Status) -> int:
        """How many findings have this status."""
        return sum(finding.status is status for finding in self.findings)

    @property
    def healthy(self) -> bool:
        """Nothing failed."""
        return not self.count(Status.FAILURE)

    def rendered(self) -> RenderableType:
        """The table, and one line that sums it up."""
        table = Table("check", "", "found", "what to do", show_lines=True)
        for finding in self.findings:
            words, style = _LOOKS[finding.status]
            # Text, not markup: a path or an id may hold square brackets.
            table.add_row(
                Text(finding.name), Text(words, style), Text(finding.found), Text(finding.advice)
            )
        return Group(table, Text(self._verdict(), "green" if self.healthy else "bold red"))

    def json(self) -> str:
        """An object with `healthy`, `findings` and `prediction`."""
        prediction = None
        if self.prediction is not None:
            prediction = asdict(self.prediction) | {"round_seconds": self.prediction.round_seconds}
        return json.dumps(
            {
                "healthy": self.healthy,
                "findings": [asdict(finding) for finding in self.findings],
                "prediction": prediction,
            },
            indent=2,
            ensure_ascii=False,
        )

    def _verdict(self) -> str:
        failures, warnings = self.count(Status.FAILURE), self.count(Status.WARNING)
        if failures:
            return f"{failures} failed, {warnings} warnings: mend what failed, then ask again."
        return f"Nothing failed, {warnings} warnings. Next: pubswap client start"
