"""The tree's structure: described folders, paths through existing files, no import cycles.

Part of `make check`.
"""

import re
import subprocess
from pathlib import Path, PurePath

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("pubswap", "pubswap_protocol", "pubswap_server", "pubswap_client"),
    "pubswap_simulation",
)
PATHS = ("One round", "One public step", "A run's file")  # in ARCHITECTURE.md


def files() -> list[PurePath]:
    """Python files that git tracks, without migrations."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [PurePath(line) for line in listed.stdout.splitlines() if "versions" not in line]


def test_no_file_stands_alone_in_describing_its_folder() -> None:
    """Each package folder's docstring says what it contains."""
    silent = [
        str(path)
        for path in files()
        if path.name == "__init__.py"
        and path.parts[0] in ("protocol", "server", "client", "simulation")
        and not (ROOT / path).read_text(encoding="utf-8").startswith('"""')
    ]
    assert not silent


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Import cycles of any length."""
    found, done = [], set[str]()

    def follow(module: str, way: tuple[str, ...]) -> None:
        if module in way:
            found.append([*way[way.index(module) :], module])
        elif module not in done:
            for following in sorted(imports[module]):
                follow(following, (*way, module))
            done.add(module)

    for module in sorted(imports):
        follow(module, ())
    return found


def test_a_circle_is_seen() -> None:
    """The search for cycles finds one, and only a real one."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c", "a"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circle_of_imports(package: str) -> None:
    """So files can be read in an order in which each follows its imports."""
    graph = grimp.build_graph(package)
    imports = {
        module: set(graph.find_modules_directly_imported_by(module)) & graph.modules
        for module in graph.modules
    }
    assert len(imports) > 4
    assert not circles(imports)


def files_on(way: str) -> list[Path]:
    """The files that a path in ARCHITECTURE.md names, relative to the folder of the one before."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    stops = text.partition(f"**{way}:**\n\n")[2].partition("\n\n")[0]
    found = []
    for stop in re.findall(r"^\d+\. (`[^:]*):", stops, re.MULTILINE):
        folder = package = ROOT
        for name in re.findall(r"`([^`]+)`", stop):
            if "…" in name:
                side, _, name = name.partition("/…/")
                folder = package = ROOT / side / f"pubswap_{side}"
            found.append((package if "/" in name else folder) / name)
            folder = found[-1].parent
    return found


@pytest.mark.parametrize("way", PATHS)
def test_the_files_on_a_path_through_the_code_exist(way: str) -> None:
    """Those that ARCHITECTURE.md names."""
    named = files_on(way)
    assert len(named) > 8
    assert not [path for path in named if not path.exists()]
