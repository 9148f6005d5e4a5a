"""The commit recorded in a result."""

import subprocess
from pathlib import Path

from pubswap_simulation.simulation import commit_of


def _git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_result_names_the_commit_and_whether_the_code_had_changed(tmp_path: Path) -> None:
    """Uncommitted changes are marked, and an installed package has no commit."""
    source, installed = tmp_path / "code", tmp_path / ".venv"
    source.mkdir()
    installed.mkdir()
    assert commit_of(source) is None
    (source / "a.py").write_text("1")
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "add", "code")
    _git(tmp_path, "commit", "--quiet", "-m", "a")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    (installed / "b.py").write_text("1")

    assert commit_of(source) == commit
    assert commit_of(installed) is None
    (source / "a.py").write_text("2")
    assert commit_of(source) == f"{commit}-dirty"
