"""Write the sources of the documentation site: docs/, the root's pages, references from the code.

`make docs` runs this and has Sphinx build the site. It stops at a broken link, or a setting without
a description.
"""

import inspect
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from pydantic import BaseModel
from typer.cli import get_docs_for_click

import pubswap
import pubswap_protocol
from pubswap_client.consent.policy import LocalPolicy
from pubswap_client.recipes.recipe import Recipe
from pubswap_client.settings import ClientSettings
from pubswap_protocol.cli import build_app
from pubswap_protocol.command_line.schema_text import (
    Json,
    default_text,
    plain,
    tables,
    type_text,
    unit,
)
from pubswap_protocol.errors import PubSwapError, tree
from pubswap_server.app import create_app
from pubswap_server.settings import ServerSettings

ROOT = Path(__file__).parent.parent
# Files outside docs/, and their pages on the site.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/recipes/small/study/README.md": "study.md",
    "deploy/recipes/small/study/contrasts.png": "contrasts.png",
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def main(folder: Path) -> None:
    """Write the sources into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    navigation = (folder / "index.md").read_text(encoding="utf-8")
    for source, page in PAGES.items():
        shutil.copyfile(ROOT / source, folder / page)
    for path in folder.rglob("*.md"):
        path.write_text(_with_links(path.read_text(encoding="utf-8"), path.relative_to(folder)))
    with (folder / "index.md").open("a", encoding="utf-8") as file:
        file.write(f"\n{navigation}")
    for name, lines in references().items():
        with (folder / "reference" / f"{name}.md").open("a", encoding="utf-8") as file:
            file.write("\n" + "\n".join(lines))


def _with_links(text: str, page: Path) -> str:
    """Point links between files to the site's pages; links to other files become their names."""
    at = page.as_posix()
    source = Path({uri: path for path, uri in PAGES.items()}.get(at, f"docs/{at}"))

    def link(match: re.Match[str]) -> str:
        label, path, anchor = match.groups(default="")
        target = Path(os.path.normpath(source.parent / path)).as_posix()
        if target in PAGES or target.startswith("docs/"):
            uri = PAGES.get(target, target.removeprefix("docs/"))
            return f"[{label}]({Path(os.path.relpath(uri, page.parent)).as_posix()}{anchor})"
        if not (ROOT / target).exists():
            sys.exit(f"{source}: there is no {target}")
        return f"`{target}`" if target.endswith(label.strip("`")) else f"{label} (`{target}`)"

    return _LINK.sub(link, text)


def references() -> dict[str, Iterable[str]]:
    """The pages of reference/, by name."""
    commands = typer.main.get_command(build_app())
    context = typer.Context(commands)
    return {
        "run-settings": _settings(Recipe),
        "client-settings": _settings(ClientSettings),
        "server-settings": _settings(ServerSettings, "PUBSWAP_"),
        "policy": _settings(LocalPolicy),
        "errors": _errors(),
        "commands": [get_docs_for_click(obj=commands, ctx=context, name="pubswap", indent=1)],
        "http": _http(create_app(ServerSettings()).openapi()),
        "python": _python(),
    }


def _settings(model: type[BaseModel], environment: str = "") -> Iterator[str]:
    """A table of a settings class, and one for each table within it."""
    for table, description, fields in tables(model):
        if table:
            yield f"\n## `[{table}]`\n\n{_text(description)}\n"
        for name, field in fields.items():
            if not field.get("description"):
                sys.exit(f"{model.__name__}: {table}.{name} needs a description")
        named = {
            f"{environment}{name}".upper() if environment else name: field
            for name, field in fields.items()
        }
        yield from _rows("Setting", named, {})


def _rows(heading: str, fields: dict[str, Json], schema: Json) -> Iterator[str]:
    if not fields:
        return
    yield f"| {heading} | Type | Default | Unit | Meaning |\n|---|---|---|---|---|"
    for name, field in fields.items():
        shown = f"`{text}`" if (text := default_text(field)) else ""
        meaning = _text(field.get("description", ""))
        kind = field.get("type_text") or type_text(field, schema)
        yield f"| `{name}` | {kind} | {shown} | {unit(name)} | {meaning} |"


def _text(text: str) -> str:
    return plain(text).replace("|", "\\|")


def _errors() -> Iterator[str]:
    """The error tree as a table."""
    yield "| Code | A kind of | Status | Try again | Meaning |\n|---|---|---|---|---|"
    parents = {child: parent for parent in tree(PubSwapError) for child in parent.__subclasses__()}
    for error in tree(PubSwapError)[1:]:
        kind = f"`{parents[error].code}`" if parents[error] is not PubSwapError else ""
        retry = "yes" if error.retryable else ""
        meaning = _text(error.__doc__ or "")
        yield f"| `{error.code}` | {kind} | {error.status} | {retry} | {meaning} |"


def _http(document: Json) -> Iterator[str]:
    """The OpenAPI document in readable form."""
    yield document["info"]["description"]
    for tag in document["tags"]:
        yield f"\n## {tag['name'].capitalize()}\n\n{tag.get('description', '')}\n"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == [tag["name"]]:
                    yield from _operation(f"{method.upper()} {path}", operation, document)
    yield "\n## Messages\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        if "properties" in schema and not name.endswith("-Output"):  # the same as its -Input
            yield f"\n### {name.removesuffix('-Input')}\n\n{schema.get('description', '')}\n"
            yield from _rows("Field", schema["properties"], document)


def _operation(request: str, operation: Json, document: Json) -> Iterator[str]:
    yield f"\n### {operation['summary']}\n\n`{request}`\n\n{operation.get('description', '')}\n"
    parameters = operation.get("parameters", [])
    fields = {
        parameter["name"]: parameter["schema"] | {"description": parameter.get("description", "")}
        for parameter in parameters
    }
    yield from _rows("Parameter", fields, document)
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        yield f"\nBody: {type_text(body.get('schema', {}), document)} (`{kind}`)\n"
    for status, reply in operation["responses"].items():
        if int(status) < 400:
            kinds = [
                f"{type_text(content.get('schema', {}), document)} (`{kind}`)"
                for kind, content in reply.get("content", {}).items()
            ]
            yield f"\n{status}: {', '.join(kinds) or reply['description']}\n"
    refused = ", ".join(status for status in operation["responses"] if int(status) >= 400)
    yield f"\nRefusals: {refused}, see [errors](errors.md)\n"


def _python() -> Iterator[str]:
    """The public names of `pubswap`, and those of the protocol's modules."""
    yield f"\n## pubswap\n\n{inspect.getdoc(pubswap)}\n"
    for name in pubswap.__all__:
        yield from _class(name, getattr(pubswap, name))
    for info in pkgutil.walk_packages(pubswap_protocol.__path__, "pubswap_protocol."):
        if not info.ispkg and not re.search(r"cli$|command_line|__main__|errors", info.name):
            yield from _module(import_module(info.name))


def _module(module: ModuleType) -> Iterator[str]:
    yield f"\n## {module.__name__}\n\n{inspect.getdoc(module)}\n"
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", "") != module.__name__:
            continue
        if inspect.isfunction(member):
            yield from _signature("###", name, member)
        elif inspect.isclass(member) and not issubclass(member, PubSwapError | BaseModel):
            yield from _class(name, member)


def _class(name: str, member: type) -> Iterator[str]:
    """A class with its public members, and its constructor if that is documented."""
    yield f"\n### {name}\n\n{inspect.getdoc(member)}\n"
    init = vars(member).get("__init__")
    if inspect.isfunction(init) and init.__doc__:
        yield f"```python\n{name}{inspect.signature(member)}\n```\n\n{inspect.getdoc(init)}\n"
    for inner, attribute in vars(member).items():
        if inner.startswith("_"):
            continue
        if isinstance(attribute, property | cached_property):
            yield f"\n#### {name}.{inner}\n\n{inspect.getdoc(attribute)}\n"
        elif inspect.isroutine(method := getattr(member, inner)):
            yield from _signature("####", f"{name}.{inner}", method)


def _signature(heading: str, name: str, function: Any) -> Iterator[str]:
    if doc := inspect.getdoc(function):
        signature = f"{name.rpartition('.')[2]}{inspect.signature(function)}"
        yield f"\n{heading} {name}\n\n```python\n{signature}\n```\n\n{doc}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
