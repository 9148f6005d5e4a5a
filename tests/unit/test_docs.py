"""What the documents say is there: commands, options, files, links."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from pubswap_protocol.cli import build_app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```(?:bash|sh)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PACKAGES = {
    f"{name}/…/": f"{name}/pubswap_{name}/"
    for name in ("protocol", "server", "client", "simulation")
}


def commands_in(page: Path) -> Iterator[list[str]]:
    """The words of each `pubswap …` that the page tells a reader to type."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    for line in [*lines, *CODE.findall(BLOCK.sub("", text))]:
        typed = re.fullmatch(r"(?:\.venv/bin/)?pubswap ([a-z][^#|]*)(#.*)?", line.strip())
        if typed:
            yield typed[1].split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_a_document_exists(page: Path) -> None:
    """With each of its options."""
    for words in commands_in(page):
        command: Any = typer.main.get_command(build_app())
        rest = list(words)
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            assert rest[0] in command.commands, f"{page.name}: pubswap {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert given <= known, f"{page.name}: pubswap {' '.join(words)}"


def test_documents_name_commands() -> None:
    """The test above finds what it is about."""
    assert sum(len(list(commands_in(page))) for page in PAGES) > 50


def test_every_file_that_architecture_names_exists() -> None:
    """Stop by stop; a name without its folder is beside the one before it."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    stops = re.findall(r"^\d+\. (`[^:]*):", text, re.MULTILINE)
    assert len(stops) > 15
    for stop in stops:
        folder = package = ROOT
        for name in CODE.findall(stop):
            head = next((short for short in PACKAGES if name.startswith(short)), None)
            if head:
                package = ROOT / PACKAGES[head]
                path = package / name.removeprefix(head)
            else:
                path = package / name if "/" in name else folder / name
            assert path.exists(), f"ARCHITECTURE.md: {name} in {stop}"
            folder = path.parent


def test_the_site_s_sources_are_complete(tmp_path: Path) -> None:
    """All links lead to files, every setting is described, and each reference has its table."""
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts/docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    docs_site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs_site)
    docs_site.main(tmp_path / "sources")
    written = {path.stem: path.read_text() for path in (tmp_path / "sources/reference").iterdir()}
    assert "learning_rate" in written["run-settings"]
    assert "`PUBSWAP_DATABASE_URL`" in written["server-settings"]
    assert "pubswap run create" in written["commands"]
    assert "POST /v1/runs/{run}/rounds/{round}/update" in written["http"]
    assert "`base_model_mismatch`" in written["errors"]
