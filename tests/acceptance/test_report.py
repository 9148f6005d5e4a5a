"""`pubswap report` as a researcher uses it."""

import subprocess
from pathlib import Path

from support.client.results import study, write_store
from support.forked import pubswap


def report(*words: str) -> subprocess.CompletedProcess[str]:
    return pubswap("report", *words)


def test_report_writes_its_files_and_prints_the_main_table(tmp_path: Path) -> None:
    """The table of methods goes to the terminal, the rest to the store's folder."""
    store = write_store(tmp_path / "store", study(seeds=range(2)))
    done = report(str(store))
    assert done.returncode == 0, done.stderr
    assert "final pass@1" in done.stdout
    assert "PubSwap-keep" in done.stdout
    names = {path.name for path in (store / "report").iterdir()}
    assert names == {"report.md", "results.csv", "final.png", "curves.png"}


def test_report_names_the_primary_contrast_or_the_rows_that_there_are(tmp_path: Path) -> None:
    """In one line; an unknown row is refused in one, too. Without it, its plot is left over."""
    store = write_store(tmp_path / "store", study(seeds=range(2)))
    done = report(str(store), "--primary", "PubSwap-keep, period 2 - FedAvg")
    assert done.returncode == 0, done.stderr
    assert "primary: PubSwap-keep, period 2 - FedAvg, τ 24: +" in " ".join(done.stdout.split())
    written = (store / "report" / "report.md").read_text()
    assert "| PubSwap-keep, period 2 - FedAvg | 24 | +" in written
    assert "](contrasts.png)" in written
    assert (store / "report" / "contrasts.png").exists()
    (store / "report" / "report.json").touch()  # an earlier version's, or anybody's
    again = report(str(store))
    assert "not of this report: contrasts.png, report.json" in " ".join(again.stdout.split())
    assert (store / "report" / "contrasts.png").exists()
    refused = report(str(store), "--primary", "keep - FedAvg")
    assert refused.returncode == 1
    assert "There are: " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_empty_store_is_refused_in_one_line(tmp_path: Path) -> None:
    """With what to do next, and without a traceback."""
    done = report(str(tmp_path))
    assert done.returncode == 1
    assert "pubswap simulate RECIPE" in done.stderr
    assert "[invalid_settings]" in done.stderr
    assert "Traceback" not in done.stderr
