"""`pubswap run ...` and `pubswap invite`: the operator's commands."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_protocol import paths
from pubswap_protocol.bounds import MAX_NUMBER, NAME_FORM, NAME_PATTERN
from pubswap_protocol.command_line.statuses import ERROR, INTERRUPTED
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import (
    CreateInvite,
    Invite,
    Reissue,
    Role,
    Rollback,
    RoundSummary,
    RunView,
)

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient

Url = Annotated[
    str,
    typer.Option("--coordinator", envvar="PUBSWAP_COORDINATOR", help="The coordinator's address."),
]
TokenFile = Annotated[
    Path,
    typer.Option(
        envvar="PUBSWAP_OPERATOR_TOKEN_FILE",
        help="The file with the operator token; PUBSWAP_OPERATOR_TOKEN itself goes first.",
    ),
]


def valid_name(text: str) -> str:
    """A run's or member's name; says what is allowed of one that cannot be any."""
    if not re.fullmatch(NAME_PATTERN, text):
        raise typer.BadParameter(f"{text!r} is no name: a name is {NAME_FORM}.")
    return text


Run = Annotated[str, typer.Argument(help="The run's id or name.", callback=valid_name)]
Name = Annotated[
    str, typer.Argument(help="The member's name, such as hospital-a.", callback=valid_name)
]
Hours = Annotated[float, typer.Option(help="How long the invite is good for.")]
Quiet = Annotated[bool, typer.Option(help="Print the code alone.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")]

A_WEEK = 7 * 24.0
LONGEST_HOURS = 10 * 366 * 24

DEFAULT_URL = "http://127.0.0.1:8470"
DEFAULT_TOKEN_FILE = Path("pubswap-data/operator-token")
SHOWN_ROUNDS = 50

run_commands = typer.Typer(help="Create, watch and move runs.", no_args_is_help=True)


def operator_token(file: Path) -> str:
    """The operator's token; raises InvalidSettings saying where it is looked for."""
    if token := os.environ.get("PUBSWAP_OPERATOR_TOKEN"):
        return token
    try:
        return file.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidSettings(
            f"The operator token is not in {file} ({reason}). `pubswap serve` writes it to its "
            "data folder; give that file with --token-file."
        ) from None


def connect(url: str, token_file: Path) -> CoordinatorClient:
    """A client with the operator's token that fails at once rather than retrying."""
    from pubswap_client.coordinator.client import CoordinatorClient
    from pubswap_client.coordinator.retry import ONCE
    from pubswap_client.coordinator.tls import from_environment

    return CoordinatorClient(url, operator_token(token_file), ONCE, tls=from_environment())


def confirm(consequence: str, yes: bool) -> None:
    """Return if a person agrees to the consequence, or has by `--yes`; end the command if not.

    Raises InvalidSettings where nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidSettings(f"{consequence} Nothing was changed; to do it, add --yes.")
    typer.echo(consequence, err=True)
    try:
        status = None if typer.confirm("Go on?", err=True) else ERROR
    except typer.Abort:  # Ctrl-C
        typer.echo(err=True)
        status = INTERRUPTED
    if status is not None:
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(status)


@run_commands.command("create")
def create(
    recipe: Annotated[str, typer.Argument(help="The run's TOML file, or a recipe's name.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Where the recipe's data.prepare makes its sets, or has made them."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE instead of the file's; again.")
    ] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Create a run from its file and open it for members.

    The coordinator is sent the public and the test set. Private sets, if the recipe makes any,
    stay where they are made, for you to hand to their organisations.
    """
    from pubswap_client.operator.runfile import create_and_open, make_sets, prepare
    from pubswap_client.recipes.inheritance import parse_set
    from pubswap_client.recipes.recipe import load_recipe

    loaded = load_recipe(recipe, parse_set(changes or []))
    files = make_sets(loaded, data)
    prepared = prepare(loaded, files)
    with connect(url, token_file) as api:
        run = create_and_open(api, prepared)
    typer.echo(f"Run {run.name} is open: {run.id}")
    if files.private:
        typer.echo("Private sets, one for each organisation and for nobody else:")
        for path in files.private:
            typer.echo(f"  {path}")
    typer.echo(f"Next: pubswap invite {run.name} NAME, once for each organisation.")


@run_commands.command("list")
def list_runs(url: Url = DEFAULT_URL, token_file: TokenFile = DEFAULT_TOKEN_FILE) -> None:
    """List the runs, newest first."""
    from rich.console import Console

    from pubswap_client.operator.tables import runs_table

    with connect(url, token_file) as api:
        Console().print(runs_table(api.runs()))


@run_commands.command("show")
def show(
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole run as JSON.")] = False,
    watch: Annotated[bool, typer.Option(help="Print again every 2 s until it ends.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Show a run: its last rounds, pass@1, bytes, and where each member is."""
    with connect(url, token_file) as api:
        while True:
            if as_json:
                view: RunView = api.whole_run(run)
                typer.echo(json.dumps(view.model_dump(mode="json"), indent=2))
            else:
                view = api.run(run)
                after = max(-1, view.round - SHOWN_ROUNDS)
                _print_run(view, list(api.rounds(view.id, after)))
            if not watch or view.state in ("finished", "cancelled"):
                return
            time.sleep(2)


def _print_run(view: RunView, rounds: list[RoundSummary]) -> None:
    from rich.console import Console

    from pubswap_client.operator.tables import members_table, rounds_table, state_text

    console = Console()
    console.print(
        f"[bold]{view.name}[/bold] ({view.id}): {state_text(view)}, round {view.round} of "
        f"{view.settings.rounds}, {view.settings.method}, base model {view.model.source}"
    )
    if view.waiting_for is not None:
        console.print(f"[bold]It waits:[/bold] {view.waiting_for}")
    if view.best is not None:
        score, best = f"{view.best.pass_at_1:.3f}", view.best.round
        console.print(f"The best so far: pass@1 {score} after round {best}")
    if rounds and rounds[0].round > 0:
        console.print(f"The rounds from {rounds[0].round} on; --json has them all.")
    console.print(rounds_table(rounds))
    console.print(members_table(view.members))


def _move(run: str, path: str, url: str, token_file: Path) -> None:
    from pubswap_client.operator.tables import state_text

    with connect(url, token_file) as api:
        view = api.move_run(run, path)
    typer.echo(f"Run {view.name} is {state_text(view)}.")


@run_commands.command("start")
def start(run: Run, url: Url = DEFAULT_URL, token_file: TokenFile = DEFAULT_TOKEN_FILE) -> None:
    """Begin round 1; all clients must have enrolled."""
    _move(run, paths.RUN_START, url, token_file)


@run_commands.command("pause")
def pause(run: Run, url: Url = DEFAULT_URL, token_file: TokenFile = DEFAULT_TOKEN_FILE) -> None:
    """Give out no new work until resumed; what is under way may be handed in."""
    _move(run, paths.RUN_PAUSE, url, token_file)


@run_commands.command("resume")
def resume(run: Run, url: Url = DEFAULT_URL, token_file: TokenFile = DEFAULT_TOKEN_FILE) -> None:
    """Go on after a pause."""
    _move(run, paths.RUN_RESUME, url, token_file)


@run_commands.command("cancel")
def cancel(
    run: Run,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """End a run for good; its adapters so far are kept."""
    if not yes:
        with connect(url, token_file) as api:
            view = api.run(run)
        confirm(
            f"{_described(view)} Cancelling is final: its members stop, and the round under way is "
            "lost. The adapters of the rounds before it are kept.",
            yes,
        )
        run = view.id  # the very one that was shown, should another take its name meanwhile
    _move(run, paths.RUN_CANCEL, url, token_file)


@run_commands.command("archive")
def archive(
    run: Run,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Free the disk of a run that has ended; its final and its best adapter are kept.

    So are its settings, sets, evaluations, figures and log. Export other rounds' adapters first.
    """
    with connect(url, token_file) as api:
        view = api.run(run)
        confirm(
            f"{_described(view)} Archiving is final: all adapters but the final and the best one, "
            "and all updates and responses, are removed.",
            yes,
        )
        api.move_run(view.id, paths.RUN_ARCHIVE)
    typer.echo(f"Run {view.name} is archived. The coordinator's disk has the room soon.")


@run_commands.command("delete")
def delete(
    run: Run,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Delete a run that has ended, with all its adapters and its log.

    `pubswap run archive` keeps its final and its best adapter, and the log.
    """
    with connect(url, token_file) as api:
        view = api.run(run)
        confirm(
            f"{_described(view)} Deleting is final: its adapters, updates, evaluations and log are "
            "removed, and its members' tokens are worthless.",
            yes,
        )
        api.delete_run(view.id)
    typer.echo(f"Run {view.name} ({view.id}) is deleted. The coordinator's disk has the room soon.")


@run_commands.command("exclude")
def exclude(
    run: Run,
    member: Annotated[str, typer.Argument(help="Whose update to leave out.")],
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Leave a member's update out of the round under way."""
    with connect(url, token_file) as api:
        view = api.run(run)
        confirm(
            f"{_described(view)} The update of {member} will not count in round {view.round}, and "
            f"{member} cannot send another one in it.",
            yes,
        )
        after = api.exclude(view.id, view.round, member)
    typer.echo(f"The update of {member} is left out of round {view.round} of {view.name}.")
    if after.waiting_for is not None:
        typer.echo(f"It waits: {after.waiting_for}")


@run_commands.command("rollback")
def rollback(
    run: Run,
    to: Annotated[
        int, typer.Option(min=0, max=MAX_NUMBER, help="The round whose adapter to go on from.")
    ],
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Go back to a round's adapter, and on from there."""
    with connect(url, token_file) as api:
        view = api.run(run)
        confirm(
            f"{_described(view)} It goes back to the adapter of round {to}: the rounds after it "
            "are trained again, and their updates are lost.",
            yes,
        )
        api.roll_back(view.id, Rollback(to=to))
    typer.echo(f"Run {view.name} goes on in round {to + 1}, from the adapter of round {to}.")


def _described(view: RunView) -> str:
    from pubswap_client.operator.tables import state_text

    members = ", ".join(member.name for member in view.members if member.active) or "nobody"
    return (
        f"Run {view.name} ({view.id}) is {state_text(view)}, in round {view.round} of "
        f"{view.settings.rounds}, with {members}."
    )


@run_commands.command("export")
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("adapter"),
    which: Annotated[str, typer.Option(help="final, best, or a round's number.")] = "final",
    force: Annotated[
        bool, typer.Option("--force", help="Write over what is in the folder.")
    ] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Write a global adapter as a PEFT folder."""
    from pubswap_client.rollout.peft_folder import write_peft_folder

    if out.exists() and not force and (not out.is_dir() or any(out.iterdir())):
        raise InvalidSettings(f"{out} is there already; choose another --out, or add --force.")
    with connect(url, token_file) as api:
        view = api.run(run)
        number, adapter = api.adapter_of_round(view.id, which)
        write_peft_folder(out, adapter, view.settings.lora, view.model, view.model.source)
    typer.echo(f"Wrote {_adapter_text(view, which, number)} of {view.name} to {out}. Load it with")
    typer.echo(f"  peft.PeftModel.from_pretrained(base_model, '{out}')")


def _adapter_text(view: RunView, which: str, number: int) -> str:
    if number == 0:
        return "the untrained initial adapter, with which the model is as its base,"
    trained = f"the adapter after round {number} of {view.settings.rounds}"
    return f"{trained}, the best so far," if which == "best" else trained


def invite(
    run: Run,
    name: Name,
    role: Annotated[Role, typer.Option(help="client or evaluator.")] = Role.CLIENT,
    hours: Hours = A_WEEK,
    quiet: Quiet = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = DEFAULT_TOKEN_FILE,
) -> None:
    """Make a one-time invite; send its code to the organisation over a channel you trust."""
    body = CreateInvite(name=name, role=role, expires_in_seconds=invite_seconds(hours))
    with connect(url, token_file) as api:
        issued = api.invite(run, body)
    print_invite(issued, url, quiet)


def invite_seconds(hours: float) -> int:
    """An invite's life; raises InvalidSettings for less than a second or more than 10 years."""
    if not 1 / 3600 <= hours <= LONGEST_HOURS:
        raise InvalidSettings(f"--hours is between 1/3600 and {LONGEST_HOURS}, not {hours:g}.")
    return max(1, int(hours * 3600))


def print_invite(issued: Invite, url: str, quiet: bool) -> None:
    if quiet:
        typer.echo(issued.invite)
        return
    typer.echo(
        f"Invite for {issued.name} ({issued.role}), good until {issued.expires_at:%F %T %Z}:"
    )
    typer.echo(f"  pubswap client enroll --coordinator {url} --invite {issued.invite}")


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
        yes,
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
        issued = api.reissue(run, name, Reissue(expires_in_seconds=invite_seconds(hours)))
    print_invite(issued, url, quiet)


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
