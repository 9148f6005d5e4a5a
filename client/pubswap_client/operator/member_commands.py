"""`pubswap member ...`: who takes part, and who no longer does."""

from pathlib import Path
from typing import Annotated

import typer

from pubswap_client.operator.commands import (
    A_WEEK,
    DEFAULT_TOKEN_FILE,
    DEFAULT_URL,
    Hours,
    Name,
    Quiet,
    Run,
    TokenFile,
    Url,
    connect,
    invite_seconds,
    print_invite,
)
from pubswap_client.operator.confirm import Yes, confirm
from pubswap_protocol import paths
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import Reissue

member_commands = typer.Typer(help="See, suspend and revoke members.", no_args_is_help=True)


@member_commands.command("list")
def list_members(
    run: Run, url: Url = DEFAULT_URL, token_file: TokenFile = DEFAULT_TOKEN_FILE
) -> None:
    """List a run's members and where each is."""
    from rich.console import Console

    from pubswap_client.operator.tables import members_table

    with connect(url, token_file) as api:
        Console().print(members_table(api.members(run).members))


@member_commands.command("suspend")
def suspend(
    run: Run, name: Name, url: Url = DEFAULT_URL, token_file: TokenFile = DEFAULT_TOKEN_FILE
) -> None:
    """Refuse a member until it is reinstated.

    Rounds and exchanges no longer wait for it. What it handed in before counts, also in the round
    under way. Its daemon keeps trying, and goes on by itself afterwards.
    """
    with connect(url, token_file) as api:
        api.decide(run, name, paths.RUN_MEMBER_SUSPEND)
    typer.echo(f"{name} is suspended; pubswap member reinstate {run} {name} takes it back.")


@member_commands.command("reinstate")
def reinstate(
    run: Run, name: Name, url: Url = DEFAULT_URL, token_file: TokenFile = DEFAULT_TOKEN_FILE
) -> None:
    """Take a suspended member back."""
    with connect(url, token_file) as api:
        api.decide(run, name, paths.RUN_MEMBER_REINSTATE)
    typer.echo(f"{name} takes part again.")


@member_commands.command("revoke")
def revoke(
    run: Run,
    name: Name,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Make a member's token worthless for good; what it handed in before counts."""
    confirm(
        f"Revoking {name} of run {run} is final: its token is worthless at once, and its name "
        "stays taken.",
        yes=yes,
    )
    with connect(url, token_file) as api:
        api.revoke(run, name)
    typer.echo(f"{name} is revoked; to have the organisation back, invite it under another name.")


@member_commands.command("reissue")
def reissue(
    run: Run,
    name: Name,
    hours: Hours = A_WEEK,
    quiet: Quiet = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Make a new invite for a member that has lost its token.

    The old token works until the invite is used; suspend the member if it must stop at once. What
    it has handed in, and the progress in its state folder, stay good.
    """
    with connect(url, token_file) as api:
        made = api.reissue(run, name, Reissue(expires_in_seconds=invite_seconds(hours)))
    print_invite(made, url, quiet)


@member_commands.command("certificate")
def certificate(
    run: Run,
    name: Name,
    file: Annotated[Path | None, typer.Option(help="The new client certificate (PEM).")] = None,
    unbind: Annotated[
        bool, typer.Option("--unbind", help="Take any certificate from now on.")
    ] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Bind a member's token to its renewed client certificate, or to none."""
    if (file is None) != unbind:
        raise InvalidSettings("Give the certificate with --file, or --unbind for any; one of them.")
    sha256 = _fingerprint(file) if file is not None else None
    with connect(url, token_file) as api:
        api.bind_certificate(run, name, sha256)
    typer.echo(f"The token of {name} is good with {sha256 or 'any certificate'} from now on.")


def _fingerprint(file: Path) -> str:
    import hashlib
    import ssl

    try:
        der = ssl.PEM_cert_to_DER_cert(file.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"{file} is not a PEM certificate: {error}") from None
    return hashlib.sha256(der).hexdigest()
