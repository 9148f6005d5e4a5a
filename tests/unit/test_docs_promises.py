"""Pages that must be complete: every error has an entry, every security promise a test."""

import re
import tomllib
from collections import Counter
from pathlib import Path

from pubswap_protocol import __version__
from pubswap_protocol.errors import PubSwapError, tree

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_troubleshooting_has_one_entry_for_each_error_code() -> None:
    """It says what to do, for one code or several; none is missing, stale or there twice."""
    _, by_code = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").split("## By code")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| .+ \|$", by_code, re.MULTILINE)
    codes = [code for row in rows for code in re.findall(r"`(\w+)`", row)]
    assert Counter(codes) == Counter(error.code for error in tree(PubSwapError)[1:])


def test_the_page_of_platforms_has_each_python_that_can_install_it() -> None:
    """And no other."""
    page = (DOCS / "platforms.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| 3\.(\d+) \|", page, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first, after = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups()
    assert [int(minor) for minor in named] == [*range(int(first), int(after))]


def promises() -> list[str]:
    """The items under "Threats" in docs/security.md."""
    _, threats = (DOCS / "security.md").read_text(encoding="utf-8").split("## Threats")
    items = re.split(r"^- |^#+ .*\n", threats, flags=re.MULTILINE)
    return [" ".join(item.split()) for item in items if item.strip()]


def test_every_promise_of_security_names_tests_that_exist() -> None:
    """Unless it is marked as not promised."""
    tests = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(promises()) > 30
    for promise in promises():
        proofs = set(re.findall(r"`(test_\w+\.py::\w+)`", promise))
        assert bool(proofs) != promise.startswith("**Not promised:**"), promise
        assert proofs <= tests, f"{promise}: {proofs - tests}"


def test_the_changelog_begins_with_this_version() -> None:
    """Every release has an entry."""
    (first, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == __version__
