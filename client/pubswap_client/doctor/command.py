"""`pubswap client doctor`: settings in, a report on stdout out."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from pubswap_client.doctor.display import Display
from pubswap_client.doctor.finding import failure, ok
from pubswap_client.doctor.report import Report
from pubswap_client.followers import launched_rank
from pubswap_client.settings import ClientSettings, load_settings
from pubswap_protocol.errors import InvalidSettings

SETTINGS = "settings"


def run_doctor(config: Path | None, options: Mapping[str, Any], trial: bool, as_json: bool) -> bool:
    """Print the report; returns whether nothing failed."""
    try:
        settings = load_settings(config, **options)
    except InvalidSettings as error:
        advice = "Correct this key; nothing else can be checked before."
        return _print(Report([failure(SETTINGS, error.detail, advice)]), as_json)
    if launched_rank() not in (None, 0):
        from pubswap_client.training.recruiting import run_follower

        run_follower(settings)
        return True
    return _print(_examined(settings, config, trial), as_json)


def _examined(settings: ClientSettings, config: Path | None, trial: bool) -> Report:
    with Display() as display:
        display.tell("starting")
        # torch takes seconds to import, which the display is to cover.
        from pubswap_client.doctor.examination import Examination

        examination = Examination(settings, display, trial)
        source = f"from {config} and the options" if config else "from the options"
        examination.record.add(ok(SETTINGS, f"{source}; engine {settings.engine}"))
        return examination.examine()


def _print(report: Report, as_json: bool) -> bool:
    if as_json:
        sys.stdout.write(report.json() + "\n")
    else:
        Console().print(report.rendered())
    return report.healthy
