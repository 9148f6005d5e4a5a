"""The one console script. Each side registers its own commands; none is imported until it runs."""

import sys
from importlib.metadata import entry_points

import typer

from pubswap_protocol.errors import PubSwapError

_EXTRAS = {
    "server": "pubswap[server]",
    "client": "pubswap[client]",
    "research": "pubswap[research]",
}


def build_app() -> typer.Typer:
    """The command tree, from the `pubswap.commands` entry points of the installed packages."""
    app = typer.Typer(
        name="pubswap",
        help="Federated RLVR between organisations that cannot share data.\n\n"
        "Try it: `pubswap demo`. Operators: `pubswap serve`, `pubswap run`, `pubswap invite`. "
        "Organisations: `pubswap client enroll`, then `pubswap client start`.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for entry in sorted(entry_points(group="pubswap.commands"), key=lambda entry: entry.name):
        entry.load()(app)
    return app


def main() -> None:
    """Run a command; an expected failure is one line on stderr and exit status 1."""
    try:
        build_app()()
    except PubSwapError as error:
        _fail(f"{error.detail}  [{error.code}]")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pubswap"):
            raise
        _fail(
            f"This command needs the package {error.name!r}. Install its extra: "
            + " or ".join(f"pip install '{extra}'" for extra in _EXTRAS.values())
        )


def _fail(message: str) -> None:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)
    sys.exit(1)
