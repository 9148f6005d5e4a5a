"""`pubswap invite` and `pubswap member ...`: who takes part in a run."""

from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_client.command_line import AsJson, Name, Run, table_console
from pubswap_client.operator.connecting import connected, print_elsewhere
from pubswap_client.operator.tables import members_table
from pubswap_protocol import paths
from pubswap_protocol.bounds import escaped
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import CreateInvite, Invite, Reissue, Role

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient

Hours = Annotated[float, typer.Option(help="Validity of the invite in hours.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the code.")]

A_WEEK = 7 * 24.0
LONGEST_HOURS = 10 * 366 * 24


@connected
def invite(
    api: "CoordinatorClient",
    run: Run,
    name: Name,
    role: Annotated[Role, typer.Option(help="client or evaluator.")] = Role.CLIENT,
    hours: Hours = A_WEEK,
    quiet: Quiet = False,
) -> None:
    """Create a one-time invite; send its code to the organisation over a channel you trust.

    This invalidates an earlier unused invite for the same name.
    """
    body = CreateInvite(name=name, role=role, expires_in_seconds=invite_seconds(hours))
    print_invite(api.invite(run, body), api.url, quiet)


def invite_seconds(hours: float) -> int:
    """An invite's validity; raises InvalidSettings below a second or above 10 years."""
    if not 1 / 3600 <= hours <= LONGEST_HOURS:
        raise InvalidSettings(f"--hours is between 1/3600 and {LONGEST_HOURS}, not {hours:g}.")
    return max(1, int(hours * 3600))


def print_invite(issued: Invite, url: str, quiet: bool) -> None:
    if quiet:
        typer.echo(issued.invite)
        return
    typer.echo(
        f"Invite for {issued.name} ({issued.role}), valid until {issued.expires_at:%F %T %Z}:"
    )
    typer.echo(f"  pubswap client enroll --coordinator {url} --invite {issued.invite}")
    print_elsewhere(url)


@connected
def list_members(api: "CoordinatorClient", run: Run, as_json: AsJson = False) -> None:
    """List a run's members and their progress."""
    listing = api.members(run)
    if as_json:
        typer.echo(escaped(listing.model_dump_json(indent=2)))
        return
    if not listing.members:
        typer.echo(f"Nobody has enrolled. Invite each organisation: pubswap invite {run} NAME")
        return
    table_console(markup=True).print(members_table(listing.members))


@connected
def suspend(api: "CoordinatorClient", run: Run, name: Name) -> None:
    """Refuse a member until it is reinstated.

    Rounds and exchanges no longer wait for it. Its earlier contributions count, also in the current
    round. Its daemon keeps trying and continues automatically once it is reinstated.
    """
    api.decide(run, name, paths.RUN_MEMBER_SUSPEND)
    typer.echo(f"{name} is suspended. To undo this: pubswap member reinstate {run} {name}")


@connected
def reinstate(api: "CoordinatorClient", run: Run, name: Name) -> None:
    """Reinstate a suspended member."""
    api.decide(run, name, paths.RUN_MEMBER_REINSTATE)
    typer.echo(f"{name} takes part again.")


@connected
def reissue(
    api: "CoordinatorClient", run: Run, name: Name, hours: Hours = A_WEEK, quiet: Quiet = False
) -> None:
    """Create a new invite for a member that has lost its token.

    The old token works until the invite is used; suspend the member to stop it at once. Its
    contributions and the progress in its state folder stay valid.
    """
    issued = api.reissue(run, name, Reissue(expires_in_seconds=invite_seconds(hours)))
    print_invite(issued, api.url, quiet)
