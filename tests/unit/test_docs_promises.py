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


def security() -> tuple[list[list[str]], list[str]]:
    """The rows of the tables in docs/security.md, and the list of their tests."""
    threats = (DOCS / "security.md").read_text(encoding="utf-8")
    tests = (DOCS / "reference/threats.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \|(.*)\|(.*)\|$", threats, re.MULTILINE)
    rows = [[cell.strip() for cell in row] for row in rows if row[0] != "threat"]
    return rows, re.split(r"^\d+\. ", tests, flags=re.MULTILINE)[1:]


def test_every_promise_of_security_names_tests_that_exist() -> None:
    """What limits a threat has a number and tests; a threat without a limit says what is left."""
    exist = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    rows, tests = security()
    promises = [threat for threat, limit, _ in rows if limit]
    assert len(promises) > 40
    assert [threat.partition(".")[0] for threat in promises] == [
        str(number + 1) for number in range(len(tests))
    ]
    for proofs in tests:
        named = set(re.findall(r"`(test_\w+\.py::\w+)`", proofs))
        assert named, proofs
        assert named <= exist, named - exist
    assert all(left for _, limit, left in rows if not limit)


def test_the_changelog_begins_with_this_version() -> None:
    """Every release has an entry."""
    (first, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first == __version__
