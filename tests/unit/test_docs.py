"""Everything the documents name exists: commands, options, settings, files, links."""

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import pubswap
from pubswap_client.consent.policy import LocalPolicy, numbers
from pubswap_client.consent.rules import Code
from pubswap_client.recipes.inheritance import EXTENDS, WHOLE
from pubswap_client.recipes.recipe import Recipe
from pubswap_client.settings import ClientSettings
from pubswap_protocol.cli import build_app
from pubswap_protocol.command_line.keys import dotted_keys, flat
from pubswap_protocol.errors import PubSwapError, tree
from pubswap_protocol.methods.registries import REGISTRIES
from pubswap_server.monitoring.metrics import Metrics
from pubswap_server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
GONE = ROOT / "docs" / "tried.md"  # names what does not exist any more
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {GONE})
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```(?:bash|sh)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
RUN_KEYS = {EXTENDS, *dotted_keys(Recipe)}
CLIENT_KEYS = set(dotted_keys(ClientSettings))
LIMITS = {f"limits.{name}.{side}" for name in numbers() for side in ("min", "max")}
POLICY_KEYS = {*dotted_keys(LocalPolicy), *LIMITS}
NAMES = {f"{setting}.name" for setting in REGISTRIES}  # beside parameters
KEYS = RUN_KEYS | CLIENT_KEYS | POLICY_KEYS | NAMES
FREE = "vllm.extra"  # a table whose keys are vLLM's
TABLES = {FREE, *(key.rpartition(".")[0] for key in KEYS if "." in key)}
# Words with an underscore that name something other than a setting, one of its values, or an error.
OTHER_WORDS = {
    *(
        "enable_thinking",
        "synchronous_commit",
        "wal_sync_method",
    ),  # a chat template's, PostgreSQL's
    *("reasoning_gym", "score_answer", "zebra_puzzles"),  # reasoning-gym's
    *("pubswap_protocol", "create_app", "waiting_for", "ca_file"),  # in the code
    "vllm_options",  # in deploy/slurm
    "pubswap_event_loop_late_seconds",  # a metric
}
PACKAGES = {
    f"{name}/…/": f"{name}/pubswap_{name}/"
    for name in ("protocol", "server", "client", "simulation")
}
FOLDERS = ("benchmarks/", "tests/", "scripts/", "docs/", "deploy/")


@cache
def command_line() -> Any:
    """`pubswap` with all its commands."""
    return typer.main.get_command(build_app())


def commands_in(page: Path) -> Iterator[list[str]]:
    """The words of each `pubswap …` command that the page tells a reader to type."""
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
        command = command_line()
        rest = list(words)
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            assert rest[0] in command.commands, f"{page.name}: pubswap {' '.join(words)}"
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert given <= known, f"{page.name}: pubswap {' '.join(words)}"


def test_documents_name_commands() -> None:
    """The test above does find commands."""
    assert sum(len(list(commands_in(page))) for page in PAGES) > 50


def words_in(page: Path) -> list[str]:
    """The page's inline code, outside code blocks."""
    return CODE.findall(ANY_BLOCK.sub("", page.read_text(encoding="utf-8")))


def values_of(schema: Any) -> Iterator[str]:
    """The named values that settings may have."""
    if isinstance(schema, dict):
        yield from (value for value in schema.get("enum", ()) if isinstance(value, str))
        yield from (name for part in schema.values() for name in values_of(part))
    elif isinstance(schema, list):
        yield from (name for part in schema for name in values_of(part))


@cache
def named_values() -> set[str]:
    """The named values of settings, the codes of errors and of consent, and the metrics' names."""
    values = {
        *values_of(Recipe.model_json_schema()),
        *values_of(ClientSettings.model_json_schema()),
        *values_of(LocalPolicy.model_json_schema()),
    }
    metrics = {family.name for family in Metrics().registry.collect()}
    return values | {error.code for error in tree(PubSwapError)} | {*Code} | metrics


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_a_document_names_exists(page: Path) -> None:
    """Of a run or a client, as `key`, `table.key`, `key = value`, `[table]`, or a bare key."""
    last_parts = {key.rpartition(".")[2] for key in KEYS}
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    for word in words_in(page):
        key = word.partition(" = ")[0]
        dotted = re.fullmatch(r"([a-z]+)(\.[a-z0-9_]+)+", key)
        if dotted and dotted[1] in TABLES:
            assert key in KEYS, f"{page.name}: {word}"
        elif re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", key) or (key != word and key.isidentifier()):
            known = last_parts | named_values() | OTHER_WORDS
            assert key in known, f"{page.name}: {word}"
        elif table := re.fullmatch(r"\[([a-z,.]+)\]", word):
            assert table[1] in TABLES or set(table[1].split(",")) <= extras, f"{page.name}: {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_of_a_settings_file_can_be_read(page: Path) -> None:
    """The keys of a TOML block are all a run's, all a client's or all a policy's."""
    for block in TOML.findall(page.read_text(encoding="utf-8")):
        values = tomllib.loads(block)
        axes = values.get("sweep", {}).pop("grid", [])
        named = {key for key in flat(values, WHOLE) if not key.startswith(f"{FREE}.")}
        whose = (RUN_KEYS, CLIENT_KEYS, POLICY_KEYS)
        assert any(named <= keys for keys in whose), f"{page.name}: {named}"
        assert {axis for table in axes for axis in flat(table)} <= RUN_KEYS | {"members"}


def test_every_variable_that_a_document_names_is_read() -> None:
    """Environment variables of the coordinator, a client, a command or the proxy."""
    known = {f"PUBSWAP_{name}".upper() for name in ServerSettings.model_fields}
    known |= {f"PUBSWAP_CLIENT_{name}".upper() for name in ClientSettings.model_fields}
    for package in PACKAGES.values():
        for source in (ROOT / package).rglob("*.py"):
            known |= set(re.findall(r'"(PUBSWAP_[A-Z_]+)"', source.read_text(encoding="utf-8")))
    proxy = (ROOT / "deploy/nginx/pubswap.conf.template").read_text(encoding="utf-8")
    known |= set(re.findall(r"\$\{(PUBSWAP_[A-Z_]+)\}", proxy))
    for page in [*PAGES, *(ROOT / "deploy/systemd").iterdir()]:
        for name in re.findall(r"PUBSWAP_[A-Z_]*[A-Z]", page.read_text(encoding="utf-8")):
            assert name in known | {"PUBSWAP_CLIENT"}, f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Within the repository, with anchors as GitHub and the site form them."""
    for target, heading in LINK.findall(ANY_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name}: {target}"
        if heading:
            titles = HEADING.findall(ANY_BLOCK.sub("", path.read_text(encoding="utf-8")))
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in slugs, f"{page.name}: {target}#{heading}"


@cache
def sources() -> list[str]:
    """Our Python files, relative to the root."""
    folders = (*PACKAGES.values(), *FOLDERS)
    return [f"/{path.relative_to(ROOT)}" for top in folders for path in (ROOT / top).rglob("*.py")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_and_make_target_in_a_document_exists(page: Path) -> None:
    """Paths from the root, Python files by the end of their path, and targets of the Makefile."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(BLOCK.findall(text)).splitlines()
    for word in [*words_in(page), *blocks]:
        if word.endswith(".py") and "…" not in word and " " not in word:
            assert any(path.endswith(f"/{word}") for path in sources()), f"{page.name}: {word}"
        elif word.startswith((*PACKAGES.values(), *FOLDERS)) and " " not in word:
            assert (ROOT / word).exists(), f"{page.name}: {word}"
        elif word.startswith("make "):
            assert word.split()[1] in targets, f"{page.name}: {word}"


def test_the_site_s_sources_are_complete(tmp_path: Path) -> None:
    """Links lead to files, every setting is described, and each reference page has its table."""
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
    own = written["python"].partition("\n## pubswap\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^###+ (.+)$", own, re.MULTILINE)) == public_names()


def public_names() -> set[str]:
    """The public API of `pubswap`: exactly the classes of its __all__, and their public members."""
    assert {name for name in vars(pubswap) if not name.startswith("_")} == set(pubswap.__all__)
    return set(pubswap.__all__) | {
        f"{name}.{inner}"
        for name in pubswap.__all__
        for inner, member in vars(getattr(pubswap, name)).items()
        if not inner.startswith("_") and not isinstance(member, str | int)
    }


def test_every_name_that_the_page_on_python_uses_is_public() -> None:
    """In code blocks and in the text; the blocks compile as Python."""
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        compile(block, "python.md", "exec")
    used = re.findall(r"\b(coordinator|run|federation)\.(\w+)\(", text)
    assert len(used) > 10
    assert {f"{owner.capitalize()}.{name}" for owner, name in used} <= public_names()
