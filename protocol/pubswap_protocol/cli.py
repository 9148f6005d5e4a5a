"""The `pubswap` console script. Each package registers its commands, imported when they run."""

import errno
import io
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points, requires
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from pubswap_protocol import __version__
from pubswap_protocol.bounds import printable
from pubswap_protocol.command_line.settings import settings
from pubswap_protocol.command_line.statuses import ERROR, INTERRUPTED
from pubswap_protocol.errors import LocalFault, PubSwapError, first_fault

# Commands that need a whole extra. The client's includes the operator's.
_WHOLE = {
    **dict.fromkeys(("serve", "admin"), "server"),
    **dict.fromkeys(("client", "evaluate", "simulate", "demo", "demo-federate"), "client"),
}

_FOR_DEVELOPERS = {"dev", "docs", "release"}

_REMEDIES = {
    errno.EISDIR: "Name a file, not a folder.",
    errno.ENOTDIR: "Name a folder, not a file.",
    errno.EEXIST: "Move it away, or name another.",
    errno.EROFS: "Choose a folder on a writable disk.",
    errno.EACCES: "Choose a folder that this user may use, or change its owner.",
    errno.EPERM: "Choose a folder that this user may use, or change its owner.",
    errno.ENOSPC: "Free some space, and run the same command again.",
    errno.EDQUOT: "Free some space, and run the same command again.",
}


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # pydantic's, by typer
            raise


def build_app() -> typer.Typer:
    """The command tree, from the `pubswap.commands` entry points of the installed packages."""
    app = typer.Typer(
        name="pubswap",
        cls=_Commands,
        help="Federated RLVR between organisations that cannot share data.\n\n"
        "Try it: `pubswap demo`. Operators: `pubswap serve`, `pubswap run`, `pubswap invite`. "
        "Organisations: `pubswap client enroll`, then `pubswap client start`.\n\n"
        "Exit status: 0 success, 1 failure, 2 usage error, 3 run cancelled, 75 time is up, "
        "130 interrupted.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # square brackets stay text, and paragraphs reflow
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    app.command("settings")(settings)
    for entry in sorted(entry_points(group="pubswap.commands"), key=lambda entry: entry.name):
        entry.load()(app)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pubswap {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None: ...


def main() -> None:
    """Run a command. An expected failure prints one line on stderr; `statuses` has the codes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale's encoding may lack ✓ or τ. stderr escapes what it lacks without this.
        sys.stdout.reconfigure(errors="backslashreplace")
    # The processes that we start would import a random.py in the working folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        with explained():
            build_app()()
    except PubSwapError as error:
        _fail(f"{error.detail}  [{error.code}]")
    except ValidationError as error:
        _fail(f"{first_fault(error)}  [invalid]")
    except KeyboardInterrupt:
        typer.echo("Stopped.", err=True)
        sys.exit(INTERRUPTED)


@contextmanager
def explained() -> Iterator[None]:
    """Convert a missing package or an OSError to a LocalFault."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name.startswith("pubswap"):
            raise
        raise LocalFault(f"This needs the package {name!r}.{_how_to_install(name)}") from error
    except OSError as error:
        raise LocalFault(system_fault(error)) from error


def system_fault(error: OSError) -> str:
    """An OSError as text: the file, the reason, and a remedy if one is known."""
    reason = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename is not None else ""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{where}{reason}. {remedy}".strip()


def extra_for(package: str, command: str) -> str | None:
    """The extra that installs the package; if several do, the command's own, or the smallest."""
    extras: dict[str, set[str]] = defaultdict(set)
    for line in requires("pubswap") or ():
        if found := re.fullmatch(r"([\w.-]+).*extra == .(\w+).", line):
            extras[found[2]].add(found[1].replace("-", "_"))
    having = [extra for extra in extras.keys() - _FOR_DEVELOPERS if package in extras[extra]]
    whole = _WHOLE.get(command)
    return whole if whole in having else min(having, key=lambda e: len(extras[e]), default=None)


def _how_to_install(package: str) -> str:
    if package in sys.stdlib_module_names:
        return (
            " It is a part of Python that this one was built without: use the system's Python, or "
            "build it again with the library's headers installed."
        )
    extra = extra_for(package, "".join(sys.argv[1:2]))
    if extra is None:
        return f" Install it: pip install {package}"
    return f" Install it with PubSwap's extra, from a checkout: pip install '.[{extra}]'"


def _fail(message: str) -> None:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(printable(message), err=True)  # it may quote text from a coordinator or a file
    sys.exit(ERROR)
