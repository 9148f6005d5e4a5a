"""The commands that each extra supports, and the message if an extra is missing."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pubswap_client.demo.demos import MODEL
from pubswap_protocol.cli import extra_for

ROOT = Path(__file__).parents[3]

# Run several `pubswap` commands as if these packages were not installed.
WITHOUT = """
import contextlib
import importlib.util
import io
import json
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
packages, lines = json.loads(sys.argv.pop(1))
blocked = set(packages)
sys.meta_path.insert(0, Missing())
find_spec = importlib.util.find_spec  # which asks; it is to answer that there is none
importlib.util.find_spec = lambda name, *more: (
    None if name.partition(".")[0] in blocked else find_spec(name, *more)
)
from pubswap_protocol.cli import main
done = []
for line in lines:
    sys.argv[1:] = line
    said, status = io.StringIO(), 0
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    done.append((status or 0, said.getvalue()))
json.dump(done, sys.stdout)
"""
# Run the console script as where these modules do not exist, and refuse packages.
ON_WINDOWS = """
import importlib
import sys
sys.modules.update(dict.fromkeys(["fcntl", "pwd", "resource"]))
class Refused:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] in {"pubswap_protocol", *sys.stdlib_module_names}, name
sys.meta_path.insert(0, Refused())
module, _, function = sys.argv.pop(1).partition(":")
getattr(importlib.import_module(module), function)()
"""


def packages(*extras: str) -> set[str]:
    """The packages that pyproject.toml lists for these extras, by the names of their modules."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (line for extra in extras for line in listed["optional-dependencies"][extra])
    names = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines}
    return names - {"pubswap"}


OPERATOR, SERVER = packages("operator"), packages("server")
EVERYTHING = packages("operator", "client", "server", "tables", "vllm", "dp", "ray")
NO_OPERATOR = EVERYTHING - OPERATOR


def pubswap_without(packages: set[str], *lines: list[str]) -> list[tuple[int, str]]:
    """Run commands as if these packages were not installed; returns status and stderr of each."""
    order = json.dumps([sorted(packages), lines])
    command = [sys.executable, "-c", WITHOUT, order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [(status, said) for status, said in json.loads(done.stdout)]


LINES = [
    (["run", "list"], "cannot be reached"),
    (["run", "show", "a"], "cannot be reached"),
    (["run", "export", "a", "--out", "nowhere"], "cannot be reached"),
    (["invite", "a", "b"], "cannot be reached"),
    (["member", "list", "a"], "cannot be reached"),
    (["run", "create", "run.toml"], "cannot be reached"),
    (["recipe", "show", "qwen3-1.7b-math"], ""),
    (["recipe", "check", "run.toml"], ""),
]


def test_the_operator_s_extra_is_enough_for_the_operator_s_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch and the server's packages, they get as far as contacting the coordinator."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUBSWAP_OPERATOR_TOKEN", "token")
    monkeypatch.setenv("PUBSWAP_COORDINATOR", "http://127.0.0.1:1")
    lines = "".join(f'{{"id": "{n}", "prompt": "{n} =", "answer": "{n}"}}\n' for n in range(9))
    for name in ("public", "test"):
        (tmp_path / f"{name}.jsonl").write_text(lines.replace(" =", f" {name} ="))
    (tmp_path / "run.toml").write_text(
        f'name = "a"\nrounds = 1\nlocal_steps = 4\n[model]\nsource = "{MODEL}"\n'
        '[data]\npublic = "public.jsonl"\ntest = "test.jsonl"\n[grpo]\nprompts_per_step = 4\n'
    )
    done = pubswap_without(NO_OPERATOR, *(line for line, _ in LINES))
    for (line, said), (status, stderr) in zip(LINES, done, strict=True):
        assert said in stderr, line
        assert status == (1 if said else 0), (line, stderr)
        assert "extra" not in stderr, line


def test_merging_an_adapter_takes_the_client_s_extra_and_says_so_before_anything_is_fetched(
    tmp_path: Path,
) -> None:
    """The command does not contact the coordinator."""
    address = ["--coordinator", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token")]
    (tmp_path / "token").write_text("token")
    line = ["run", "export", "a", "--format", "merged", "--out", str(tmp_path / "new"), *address]
    [(status, stderr)] = pubswap_without(NO_OPERATOR, line)
    assert status == 1
    assert "'torch'" in stderr and "pip install '.[client]'" in stderr


def test_a_missing_package_is_reported_with_the_extra_to_install() -> None:
    """Whichever of its packages are missing."""
    lines = {"operator": ["run", "list"], "client": ["client", "start"], "server": ["serve"]}
    for extra, (status, stderr) in zip(
        lines, pubswap_without(EVERYTHING, *lines.values()), strict=True
    ):
        assert status == 1
        assert f"pip install '.[{extra}]'" in stderr
        assert "Traceback" not in stderr


def test_a_package_s_extra_is_the_command_s_own_or_the_smallest() -> None:
    """None for a package of nobody, or of the developers alone."""
    for package, command, extra in (
        ("httpx", "serve", "server"),
        ("httpx", "run", "operator"),
        ("dp_accounting", "client", "dp"),
        ("pyarrow", "data", "tables"),
        ("pytest", "client", None),
        ("somebody_else_s", "run", None),
    ):
        assert extra_for(package, command) == extra


def test_a_part_of_python_is_no_package_to_install() -> None:
    """A Python built without SQLite's headers lacks _sqlite3, which pip does not have."""
    ((status, stderr),) = pubswap_without({"_sqlite3"}, ["serve", "--port", "0"])
    assert status == 1
    assert "'_sqlite3'" in stderr and "part of Python" in stderr
    assert "pip" not in stderr


def test_on_windows_the_first_words_are_what_to_use_instead() -> None:
    """From the installed script, before it imports a package that may fail there."""
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["pubswap"]
    command = [sys.executable, "-c", ON_WINDOWS, script, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr == "error: PubSwap runs on Linux and macOS; on Windows use WSL 2.\n"


def test_with_only_the_server_installed_the_command_s_own_extra_is_named() -> None:
    """The package missed first is in the operator's extra, but that has no torch."""
    others = EVERYTHING - SERVER
    lines = {"operator": ["run", "create", "tour"], "client": ["evaluate"]}
    for extra, (status, stderr) in zip(
        lines, pubswap_without(others, *lines.values()), strict=True
    ):
        assert status == 1
        assert f"pip install '.[{extra}]'" in stderr
