"""`pubswap client status`, `link`, `leave` and `adapter`."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from pubswap_client.command_line import Round
from pubswap_client.coordinator.retry import ONCE, Backoff
from pubswap_client.operator.adapter_folder import (
    BaseOption,
    Format,
    FormatOption,
    take_adapter,
    which_adapter,
)
from pubswap_client.operator.watching import watch
from pubswap_client.state.lock import locked
from pubswap_client.state.membership import load_membership
from pubswap_protocol.bounds import escaped
from pubswap_protocol.messages import Away

Config = Annotated[Path | None, typer.Option(help="The client.toml that names the state folder.")]
State = Annotated[
    Path | None,
    typer.Option(help="The state folder, with token and progress.", show_default="pubswap-state"),
]


def status(
    config: Config = None,
    state: State = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, once.")] = False,
) -> None:
    """Show this organisation's run: round, step, own reward, bytes, and what it waits for.

    In a terminal beside a running daemon it is a live view until Ctrl-C. If none runs, it shows
    when one last ran. It changes nothing at the coordinator, and also works without it.
    """
    from pubswap_client.consent.member_client import member_client
    from pubswap_client.organisation import status as view
    from pubswap_client.organisation.report import look
    from pubswap_client.settings import load_settings

    folder, console = load_settings(config, state=state).state, Console(markup=False)
    stored = load_membership(folder)
    with member_client(folder, stored, ONCE) as api:
        report = look(folder, stored.membership, api)

        def read() -> tuple[RenderableType, bool]:
            nonlocal report
            report = look(folder, stored.membership, api, report)
            return view.rendered(report), report.over

        if as_json:
            typer.echo(escaped(view.as_json(report)))
        elif console.is_terminal:
            watch(read, console)
        else:
            console.print(view.rendered(report))


def link(config: Config = None, state: State = None) -> None:
    """Print a link to this organisation's own page of the run, for a browser.

    The page shows the run's means, this organisation's own figures and what was approved; when the
    run is over, also the adapter. The link works once, within ten minutes.
    """
    from pubswap_client.consent.member_client import member_client
    from pubswap_client.settings import load_settings

    folder = load_settings(config, state=state).state
    stored = load_membership(folder)
    with member_client(folder, stored, ONCE) as api:
        made = api.link(stored.membership.run)
    typer.echo(f"{stored.coordinator.rstrip('/')}{made.path}")


def leave(config: Config = None, state: State = None) -> None:
    """Leave the run for now: nobody waits for this organisation. Stop the daemon first.

    Its contributions count, and the state folder stays as it is. To come back before the run ends,
    use `pubswap client start`: in the same round it continues where it was, later it joins when
    the next round begins.
    """
    from pubswap_client.consent.member_client import member_client
    from pubswap_client.settings import load_settings

    folder = load_settings(config, state=state).state
    stored = load_membership(folder)
    member = stored.membership
    away = Away(code="left", detail="It left with `pubswap client leave`.")
    with locked(folder), member_client(folder, stored, Backoff(tries=3)) as api:
        run = api.run(member.run)
        if run.state.ended:
            typer.echo(f"Run {run.name} is {run.state}: there is nothing to leave.")
            return
        api.away(member.run, away)
    typer.echo(f"{member.name} has left run {member.run_name}, and nobody waits for it.")
    typer.echo(f"To come back: pubswap client start --state {quote(str(folder))}")


def adapter(
    out: Annotated[Path, typer.Option(help="The new folder to write.")],
    round_: Round = None,
    format_: FormatOption = Format.PEFT,
    model: BaseOption = None,
    config: Config = None,
    state: State = None,
) -> None:
    """Download the run's adapter as a folder, with a model card."""
    from pubswap_client.consent.member_client import member_client
    from pubswap_client.settings import load_settings

    settings = load_settings(config, state=state, model=model)
    stored = load_membership(settings.state)
    with member_client(settings.state, stored, Backoff(tries=3)) as api:
        run = api.whole_run(stored.membership.run)
        which = which_adapter(run, round_)
        for line in take_adapter(api, run, which, out, format_, settings.model):
            typer.echo(line)
