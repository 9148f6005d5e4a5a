"""`pubswap client privacy`: measure before an organisation agrees to a release."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pubswap_client.command_line import AsJson, Round
from pubswap_client.computing import computing
from pubswap_client.daemon.signals import until_stopped
from pubswap_protocol.bounds import escaped

if TYPE_CHECKING:
    from pubswap_client.settings import ClientSettings

privacy_commands = typer.Typer(
    help="Measure what an adapter reveals about this organisation's problems.", no_args_is_help=True
)


@privacy_commands.command("audit")
@computing("data")
def audit(
    settings: "ClientSettings",
    members: Annotated[
        Path | None, typer.Option(help="Instead of --data: only problems that were trained on.")
    ] = None,
    others: Annotated[
        Path | None,
        typer.Option(
            help="Similar problems from no run; by default those of --data that no step drew."
        ),
    ] = None,
    round_: Round = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well an attacker tells trained problems from others (membership inference).

    The attacker has the run's adapter, the base model, and a problem with its answer. The AUC is
    the share of correct guesses between a trained and an untrained problem; 0.5 is a coin toss. At
    most 500 problems of each kind are used, and each is answered four times. Nothing is changed or
    sent, and the report quotes no problem.
    """
    from pubswap_protocol.command_line.progress_bar import progress_bar

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with until_stopped(), progress_bar() as progress:
        from pubswap_client.privacy.audit import audit as run_audit

        task = progress.add_task("loading the model", total=None)
        report = run_audit(
            settings,
            members,
            others,
            round_,
            lambda what, done, total: progress.update(
                task, description=f"attacking {what}", completed=done, total=total
            ),
        )
    if as_json:
        typer.echo(escaped(report.json_text))
    else:
        Console().print(report.rendered())
