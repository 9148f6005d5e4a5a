"""The steps of CONTRIBUTING.md for a new part of the method, followed in a copy of the tree."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^<!-- (.+?): (.+?) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FEW = 10  # lines of code

SCHEMAS = """
import json
from pubswap_client.recipes.recipe import Recipe
from pubswap_server.app import create_app
from pubswap_server.settings import ServerSettings
print(json.dumps([Recipe.model_json_schema(), create_app(ServerSettings()).openapi()]))
"""

# Each part: its name, the setting that uses it, and a program that shows that it works.
PARTS = {
    "A verifier": (
        "verbatim",
        "verifier=verbatim",
        """
from pubswap_protocol.problems import Problem
from pubswap_protocol.verifiers.registry import score
problem = Problem(id="1", prompt="6 * 7 =", answer="42")
assert score("verbatim", " 42", problem) == 1.0
assert score("verbatim", "It is 42.", problem) == 0.0
""",
    ),
    "A rule": (
        "nearest_half",
        "aggregation.rule=nearest_half",
        """
import numpy as np
from pubswap_protocol.settings import RunSettings
rule = RunSettings.model_validate({"aggregation": {"rule": "nearest_half"}}).aggregation.rule
rows = [np.full(3, number, np.float32) for number in (1, 2, 90, 3)]
chosen = rule.select(np.array([[np.sum((a - b) ** 2) for b in rows] for a in rows]))
assert chosen == [0, 1, 3]
out = np.empty(3)
rule.combine([rows[number] for number in chosen], [1 / 3] * 3, out)
assert out.tolist() == [2.0, 2.0, 2.0]
""",
    ),
    "A setting": (
        "enough",
        "evaluation.enough=0.75",
        """
from pubswap_client.consent.policy import numbers
from pubswap_client.recipes.recipe import load_recipe
from pubswap_protocol.settings import RunSettings
assert load_recipe("tour", {"evaluation.enough": 0.75}).run_settings.evaluation.enough == 0.75
assert RunSettings().evaluation.enough is None
assert "evaluation.enough" in numbers()
""",
    ),
}


def steps(part: str) -> list[tuple[str, str, str]]:
    """The blocks under a heading: what to do, in which file, and the code."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = STEP.findall(text.partition(f"\n### {part}\n")[2].partition("\n##")[0])
    assert found, part
    return found


def last_line(nodes: Iterator[ast.stmt]) -> int:
    return max(node.end_lineno or 0 for node in nodes)


def imported(text: str, line: str) -> str:
    """A module with one more import, whose name joins `__all__`."""
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    imports = (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    lines.insert(last_line(imports), line)
    name = line.split()[-1]
    return re.sub(r"^__all__ = \[", f'__all__ = ["{name}", ', "".join(lines), flags=re.MULTILINE)


def follow(step: tuple[str, str, str], tree: Path) -> None:
    """Do what a block says."""
    what, name, code = step
    path = tree / name
    if what == "file":
        assert not path.exists()
        path.write_text(code)
        return
    text = path.read_text()
    if what == "import in":
        path.write_text(imported(text, code))
    else:
        (table,) = re.fullmatch(r"end of class (\w+)", what).groups()  # type: ignore[union-attr]
        lines = text.splitlines(keepends=True)
        classes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
        lines.insert(last_line(node for node in classes if node.name == table), code)
        path.write_text("".join(lines))


class Copy:
    """A copy of the tree's tracked files, whose code wins over the installed one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        for name in listed.stdout.rstrip("\0").split("\0"):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        packages = ("client", "server", "protocol", "simulation", "tests", "")
        path = os.pathsep.join(str(folder / package) for package in packages)
        self.env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}

    def run(self, *command: str) -> str:
        """Run a command in the copy; returns its output."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def python(self, *arguments: str) -> str:
        return self.run(sys.executable, *arguments)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_method_takes_ten_lines(part: str) -> None:
    """In the file that CONTRIBUTING.md shows; an import is one more."""
    for _, name, code in steps(part):
        assert len([line for line in code.splitlines() if line]) <= FEW, name


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of the tree in which all steps have been followed."""
    made = Copy(tmp_path_factory.mktemp("copy") / "tree")
    for part in PARTS:
        for step in steps(part):
            follow(step, made.folder)
    for command in (["format"], ["check", "--fix"], ["format", "--check"]):  # `make format`
        made.python("-m", "ruff", *command, "protocol")
    return made


@pytest.mark.full
@pytest.mark.parametrize("part", PARTS)
def test_a_part_works_after_its_steps(part: str, copy: Copy) -> None:
    """It does what it says, and a recipe can name it."""
    name, setting, use = PARTS[part]
    copy.python("-c", use)
    shown = copy.python("-m", "pubswap_protocol", "recipe", "show", "tour", "--set", setting)
    assert re.search(rf"\b{name}\b", shown)


@pytest.mark.full
def test_parts_are_everywhere_after_their_steps(copy: Copy) -> None:
    """In help, schemas and reference; and the tree keeps its structure."""
    copy.python("scripts/docs_site.py", "site/sources")
    page = copy.folder / "site/sources/reference/run-settings.md"
    places = [
        copy.python("-m", "pubswap_protocol", "settings", "run"),
        *map(json.dumps, json.loads(copy.python("-c", SCHEMAS))),
        page.read_text(encoding="utf-8"),
    ]
    for name, _, _ in PARTS.values():
        assert all(re.search(rf"\b{name}\b", place) for place in places)

    shutil.rmtree(copy.folder / "site")
    copy.run("git", "init", "--quiet")
    copy.run("git", "add", "--all")
    copy.python("-m", "pytest", "--quiet", "-p", "no:cacheprovider", "tests/unit/test_structure.py")
