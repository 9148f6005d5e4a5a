"""Real wheels with verifiers, built and installed by pip without a network."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pubswap_protocol.verifiers import plugin

MODULES = {"complaint_triage", "mine", "odd_scorers", "others"}  # of all wheels that tests install
EXAMPLE = Path(__file__).parents[2] / "examples" / "complaints"


def pip(*words: str | Path) -> None:
    """Run pip; setuptools, which builds the wheels, is in this environment."""
    quiet = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *map(str, words), *quiet]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def installed(project: Path, folder: Path) -> Path:
    """Build a project's wheel, and install it into a new folder; returns that."""
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder / "dist", project)
    [wheel] = (folder / "dist").iterdir()
    pip("install", "--target", folder / "site", wheel)
    return folder / "site"


def example(folder: Path) -> Path:
    """A copy of the example's project, because building leaves files in it."""
    return Path(shutil.copytree(EXAMPLE, folder / "complaints"))


def project(folder: Path, name: str, files: Mapping[str, str], entries: Mapping[str, str]) -> Path:
    """A project of top-level modules, with entry points for verifiers."""
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    modules = [Path(file).stem for file in files]
    lines = [f'{entry} = "{value}"' for entry, value in entries.items()]
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        f"[project]\nname = '{name}'\nversion = '1.0'\n"
        f"[tool.setuptools]\npy-modules = {modules}\n"
        f"[project.entry-points.'{plugin.GROUP}']\n" + "\n".join(lines) + "\n"
    )
    return folder


def install(site: str) -> None:
    """Let a process that is forked for a test find the packages that are installed there."""
    sys.path.insert(0, site)


def use(monkeypatch: pytest.MonkeyPatch, *sites: Path) -> None:
    """Let this process, and those it starts, find the packages that are installed there."""
    for site in sites:
        monkeypatch.syspath_prepend(site)
    forget()


def forget() -> None:
    """Look for packages anew, as a new process does."""
    plugin._point.cache_clear()
    plugin.package_of.cache_clear()
    plugin._function.cache_clear()
    for name in [*sys.modules]:
        if name.partition(".")[0] in MODULES:
            del sys.modules[name]
