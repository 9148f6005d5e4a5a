"""What each extra is enough for, and what is said where it is missing."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pubswap_client.demo.federation import MODEL
from pubswap_protocol.cli import EXTRAS, extra_for

ROOT = Path(__file__).parents[3]

# `pubswap` where none of these is installed.
WITHOUT = """
import importlib.util
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
blocked = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Missing())
find_spec = importlib.util.find_spec  # which asks; it is to answer that there is none
importlib.util.find_spec = lambda name, *more: (
    None if name.partition(".")[0] in blocked else find_spec(name, *more)
)
from pubswap_protocol.cli import main
main()
"""
NO_OPERATOR = {
    package for extra, packages in EXTRAS.items() if extra != "operator" for package in packages
}


def pubswap_without(packages: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command where these packages are not installed."""
    command = [sys.executable, "-c", WITHOUT, ",".join(packages), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_each_package_is_one_of_its_extra() -> None:
    """The remedy that is told is pyproject.toml's."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, packages in EXTRAS.items():
        listed = {
            text.partition("[")[0].partition(">")[0].replace("-", "_") for text in extras[extra]
        }
        assert set(packages) <= {name.partition("=")[0] for name in listed}, extra


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "list"], "cannot be reached"),
        (["run", "show", "a"], "cannot be reached"),
        (["run", "export", "a", "--out", "nowhere"], "cannot be reached"),
        (["invite", "a", "b"], "cannot be reached"),
        (["member", "list", "a"], "cannot be reached"),
        (["run", "create", "run.toml"], "cannot be reached"),
        (["recipe", "show", "qwen3-1.7b-math"], ""),
        (["recipe", "check", "run.toml"], ""),
    ],
)
def test_the_operator_s_extra_is_enough_for_the_operator_s_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    """Without torch and without the server they come as far as the coordinator."""
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
    done = pubswap_without(NO_OPERATOR, *arguments)
    assert said in done.stderr
    assert done.returncode == (1 if said else 0), done.stderr
    assert "extra" not in done.stderr


def test_merging_an_adapter_takes_the_client_s_extra_and_says_so_before_anything_is_fetched(
    tmp_path: Path,
) -> None:
    """The coordinator of this line is not reached."""
    address = ["--coordinator", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token")]
    (tmp_path / "token").write_text("token")
    line = ["run", "export", "a", "--format", "merged", "--out", str(tmp_path / "new"), *address]
    done = pubswap_without(NO_OPERATOR, *line)
    assert done.returncode == 1
    assert "'torch'" in done.stderr and "pip install '.[client]'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(["run", "list"], "operator"), (["client", "start"], "client"), (["serve"], "server")],
)
def test_a_missing_package_is_said_with_the_one_extra_that_helps(
    arguments: list[str], extra: str
) -> None:
    """Whatever is missing of it."""
    done = pubswap_without({name for names in EXTRAS.values() for name in names}, *arguments)
    assert done.returncode == 1
    assert f"pip install '.[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert extra_for("somebody_else_s", "run") is None


@pytest.mark.parametrize(
    ("arguments", "extra"), [(["run", "list"], "operator"), (["evaluate"], "client")]
)
def test_beside_a_server_the_extra_is_the_command_s_too(arguments: list[str], extra: str) -> None:
    """The first package that is missing is the operator's extra's, which has no torch."""
    others = {name for names in EXTRAS.values() for name in names} - set(EXTRAS["server"])
    done = pubswap_without(others, *arguments)
    assert done.returncode == 1
    assert f"pip install '.[{extra}]'" in done.stderr
