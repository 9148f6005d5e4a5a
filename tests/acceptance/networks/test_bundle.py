"""`pubswap bundle`: written whole or not at all, and sufficient without a network."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pubswap_client.bundle.making import MODEL, WHEELS, make
from pubswap_client.recipes.recipe import load_recipe
from pubswap_client.signed_manifest import Kind, faults
from pubswap_protocol.digests import sha256_of
from pubswap_protocol.errors import Conflict, LocalFault
from pubswap_protocol.problems import write_problems
from support.client.simulations import write_recipe
from support.coordinator.processes import sums
from support.eventually import until
from support.forked import Forked, pubswap
from support.privacy import namespace

ROOT = Path(__file__).parents[3]
MISSING = namespace.missing()
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "pubswap"
version = "7"
"""
# A wheel of our own, whose download waits as long as a file exists.
BACKEND = """
import os, pathlib, shutil, time
def build_wheel(folder, config_settings=None, metadata_directory=None):
    here = pathlib.Path(__file__).parent
    while (here / "hold").exists():
        (here / "held").touch()
        time.sleep(0.02)
    if (here / "broken").exists():
        raise SystemExit("this cannot be built")
    return shutil.copy(here / "pubswap-7-py3-none-any.whl", folder).rpartition("/")[2]
"""


def write_wheel(folder: Path, name: str, version: str, more: str = "") -> Path:
    """Write an empty wheel."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
        wheel.writestr(f"{info}/METADATA", meta)
        tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tag)
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a PubSwap that needs only one small package from a local folder."""
    folder, shelf = tmp_path / "checkout", tmp_path / "shelf"
    folder.mkdir()
    shelf.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "constraints.txt").write_text("small==2\nreasoning-gym==1\n")
    extra = "Provides-Extra: client\nRequires-Dist: small; extra == 'client'\n"
    write_wheel(folder, "pubswap", "7", extra)
    for name, version in (("small", "2"), ("small", "3"), ("reasoning_gym", "1")):
        write_wheel(shelf, name, version)
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "recipe")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_bundle_is_whole_or_not_there_and_none_is_written_over(
    tmp_path: Path, checkout: Path, recipe: Path
) -> None:
    """Killed, failed or stopped, it leaves none until every file is written."""
    out = tmp_path / "bundle"
    line = ["bundle", "make", str(recipe), "--checkout", str(checkout), "--out", str(out)]
    (checkout / "hold").touch()
    process = Forked(line, tmp_path / "log")
    until(lambda: (checkout / "held").exists() or process.poll() is not None)
    process.kill()
    process.wait()
    assert not out.exists()
    (checkout / "hold").unlink()
    wanted = load_recipe(recipe), checkout, "client", out, None
    (checkout / "broken").touch()
    with pytest.raises(LocalFault, match="pip could not get the wheels"):
        make(*wanted, print)
    (checkout / "broken").unlink()

    def stop(words: str) -> None:
        if words.startswith("copying tokenizer.json"):
            raise KeyboardInterrupt

    before = names(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        make(*wanted, stop)
    assert names(tmp_path) == before
    done = pubswap(*line)
    assert done.returncode == 0, done.stderr
    assert names(out / WHEELS) == {
        "pubswap-7-py3-none-any.whl",
        "small-2-py3-none-any.whl",
        "reasoning_gym-1-py3-none-any.whl",
    }
    assert names(out) == {"README.txt", "SHA256SUMS", "requirements.txt", "run.json", MODEL, WHEELS}
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=out, check=True)

    for again in (pubswap(*line), pubswap(*line, "--extras", "server")):
        assert again.returncode == 1
        assert "already exists" in again.stderr
    verified = pubswap("bundle", "verify", str(out))
    assert verified.returncode == 0, verified.stderr
    digest = sha256_of(out / "SHA256SUMS")
    assert digest in done.stdout and digest in verified.stdout


def test_a_key_signs_the_bundle(tmp_path: Path, checkout: Path, recipe: Path) -> None:
    """The key is made if it does not exist."""
    out, key = tmp_path / "bundle", tmp_path / "key"
    make(load_recipe(recipe), checkout, "client", out, key, print)
    assert faults(out, Path(f"{key}.pub"), Kind.BUNDLE) == []


def test_only_a_client_is_told_to_have_its_machine_examined(
    tmp_path: Path, checkout: Path, recipe: Path
) -> None:
    """A coordinator's bundle lacks torch, which the examination needs."""
    for extras, told in (("client", True), ("server,operator", False)):
        out = tmp_path / extras
        make(load_recipe(recipe), checkout, extras, out, None, print)
        assert ("client doctor" in (out / "README.txt").read_text()) is told


def test_nothing_is_made_over_what_came_there_meanwhile(
    tmp_path: Path, checkout: Path, recipe: Path
) -> None:
    """That stays as it is."""
    out = tmp_path / "bundle"

    def beside(words: str) -> None:
        out.mkdir(exist_ok=True)
        (out / "mine").touch()

    with pytest.raises(Conflict, match="could not be created"):
        make(load_recipe(recipe), checkout, "client", out, None, beside)
    assert names(out) == {"mine"}


def test_what_is_asked_wrongly_is_said_at_once(tmp_path: Path, recipe: Path) -> None:
    """A folder that is not a checkout, a folder that is not a bundle, an invalid card."""
    (tmp_path / "card").write_text("{}")
    for words, said in (
        (
            ["bundle", "make", str(recipe), "--checkout", str(tmp_path)],
            "is not a checkout of PubSwap",
        ),
        (["bundle", "verify", str(tmp_path)], "SHA256SUMS: No such file"),
        (["client", "doctor", "--run", str(tmp_path / "card")], "is not a run card"),
        (["client", "doctor", "--run", str(tmp_path / "none")], "`pubswap client start` writes"),
    ):
        done = pubswap(*words, cwd=tmp_path)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_a_machine_without_a_network_installs_and_is_examined(tmp_path: Path, recipe: Path) -> None:
    """With exactly the lines of this checkout's bundle README, and without sending a packet."""
    out = tmp_path / "bundle"
    done = pubswap("bundle", "make", str(recipe), "--checkout", str(ROOT), "--out", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    write_problems(tmp_path / "private.jsonl", sums(3, 32))
    lines = [line for line in (out / "README.txt").read_text().splitlines() if line[:4] == "    "]
    assert len(lines) == 6
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    script = "\n".join(lines) + " --json > ../report.json\n"
    with namespace.network() as network:
        command = ["ip", "netns", "exec", network.name, "bash", "-euc", script]
        installed = subprocess.run(command, cwd=out, env=env, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    found = {finding["name"]: finding for finding in report["findings"]}
    assert report["healthy"]
    assert "are the run's" in found["model files"]["found"]
    assert found["trial step"]["status"] == found["prediction"]["status"] == "ok"
    assert found["coordinator"]["status"] == "skipped"
    assert [to for to in network.sent if not to[1].startswith("127.")] == []
