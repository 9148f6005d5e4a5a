"""Commands for organisations and operators. Only those that train import torch."""

import logging
import math
import sys
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_client.computing import computing
from pubswap_client.consent.audit_commands import audit_commands
from pubswap_client.consent.policy_commands import approve, deny, policy_commands, print_first_look
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_client.daemon.signals import until_stopped
from pubswap_client.data.commands import data_commands
from pubswap_client.demo.commands import demo, demo_federate
from pubswap_client.doctor.verifier_command import verifier_commands
from pubswap_client.operator import ending, members, runs, viewers
from pubswap_client.operator.connecting import Url
from pubswap_client.operator.exporting import export, verify
from pubswap_client.operator.model_cards import model_commands
from pubswap_client.organisation.commands import adapter, leave, link, status
from pubswap_client.personal.command import personalize
from pubswap_client.privacy.commands import privacy_commands
from pubswap_client.recipes.commands import recipe_commands
from pubswap_client.state.membership import membership_path
from pubswap_protocol.command_line.amounts import seconds_of
from pubswap_protocol.command_line.logs import log_to
from pubswap_protocol.command_line.statuses import CANCELLED
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import RunState

if TYPE_CHECKING:
    from pubswap_client.settings import ClientSettings

run_commands = typer.Typer(help="Create, watch and manage runs.", no_args_is_help=True)
run_commands.command("create")(runs.create)
run_commands.command("list")(runs.list_runs)
run_commands.command("show")(runs.show)
run_commands.command("log")(runs.log)
run_commands.command("resize")(runs.resize)
run_commands.command("start")(runs.start)
run_commands.command("pause")(runs.pause)
run_commands.command("resume")(runs.resume)
run_commands.command("cancel")(ending.cancel)
run_commands.command("archive")(ending.archive)
run_commands.command("delete")(ending.delete)
run_commands.command("exclude")(ending.exclude)
run_commands.command("rollback")(ending.rollback)
run_commands.command("export")(export)

export_commands = typer.Typer(help="Verify exported folders.", no_args_is_help=True)
export_commands.command("verify")(verify)

member_commands = typer.Typer(help="List, suspend and revoke members.", no_args_is_help=True)
member_commands.command("list")(members.list_members)
member_commands.command("suspend")(members.suspend)
member_commands.command("reinstate")(members.reinstate)
member_commands.command("revoke")(ending.revoke)
member_commands.command("reissue")(members.reissue)

viewer_commands = typer.Typer(
    help="Give people read-only access to the dashboard.", no_args_is_help=True
)
viewer_commands.command("add")(viewers.add)
viewer_commands.command("list")(viewers.list_viewers)
viewer_commands.command("remove")(viewers.remove)

client_commands = typer.Typer(help="Take part in a run as an organisation.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands for organisations and operators, and `demo`."""
    client_commands.add_typer(audit_commands, name="audit")
    client_commands.add_typer(privacy_commands, name="privacy")
    client_commands.add_typer(policy_commands, name="policy")
    client_commands.command("approve")(approve)
    client_commands.command("deny")(deny)
    client_commands.command("status")(status)
    client_commands.command("link")(link)
    client_commands.command("leave")(leave)
    client_commands.command("adapter")(adapter)
    client_commands.command("personalize")(personalize)
    app.add_typer(client_commands, name="client")
    app.add_typer(data_commands, name="data")
    app.add_typer(recipe_commands, name="recipe")
    app.add_typer(verifier_commands, name="verifier")
    app.add_typer(run_commands, name="run")
    app.add_typer(model_commands, name="model")
    app.add_typer(export_commands, name="export")
    app.add_typer(member_commands, name="member")
    app.add_typer(viewer_commands, name="viewer")
    app.command("invite")(members.invite)
    app.command("evaluate")(evaluate)
    app.command("demo")(demo)
    app.command("demo-federate")(demo_federate)


@client_commands.command("enroll")
def enroll(
    coordinator: Url,
    invite: Annotated[str, typer.Option(help="The one-time code from the operator.")],
    state: Annotated[
        Path, typer.Option(help="State folder for the token and the progress.")
    ] = Path("pubswap-state"),
    ca_file: Annotated[
        Path | None, typer.Option(help="The CA of the coordinator's certificate (PEM).")
    ] = None,
    client_cert: Annotated[
        Path | None, typer.Option(help="This organisation's client certificate (PEM).")
    ] = None,
    client_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
) -> None:
    """Exchange an invite for this organisation's long-lived token.

    It shows the run's settings and writes a policy.toml that allows these settings and no more. If
    the state folder already has a policy, approve the run with `pubswap client approve`.

    The paths of the TLS files are stored beside the token, so leave the files where they are. If
    enrolment fails halfway, repeat the same command with the same folder: you get the same token.
    """
    from pubswap_client.organisation import enrolling

    if (client_cert is None) != (client_key is None):
        raise InvalidSettings("--client-cert and --client-key go together.")
    ca, certificate, key = (file and file.absolute() for file in (ca_file, client_cert, client_key))
    tls = TlsFiles(ca_file=ca, certificate=certificate, key=key)
    stored = enrolling.enroll(coordinator, invite, state, tls)
    membership, path = stored.membership, membership_path(state)
    typer.echo(f"Enrolled as {membership.name} in run {membership.run_name}; token in {path}.")
    if membership.role == "client":
        print_first_look(state, stored)
    follow = "client doctor --data private.jsonl" if membership.role == "client" else "evaluate"
    typer.echo(f"Next: pubswap {follow} --state {quote(str(state))}")


@client_commands.command("start")
@computing("data", "engine", "processes")
def start(
    settings: "ClientSettings",
    until: Annotated[
        str | None,
        typer.Option(help="End after the last step that fits into this time, such as 55m."),
    ] = None,
) -> None:
    """Train on the private data until the run ends.

    You can stop it at any time (Ctrl-C, SIGTERM, power cut) and start it again: it continues after
    its last finished step, which is in the state folder. Before you start, `pubswap client doctor`
    with the same options checks everything. `pubswap client status` shows the progress. At the end
    of the run it prints the results, and leaves a summary and the adapter in the state folder.

    The run decides what is trained. Options and client.toml decide where and on what data, for
    example: micro_batch_tokens, gradient_checkpointing, shard, track = ["tensorboard"], [vllm].

    Exit status: 0 if the run has finished, 3 if it was cancelled, 75 if the time of --until is up,
    130 if you stopped it, 1 after an error.
    """
    end = time.monotonic() + seconds_of(until, "--until") if until is not None else math.inf
    log_to(sys.stderr, settings.log_format)
    with until_stopped(end):
        from pubswap_client.daemon.session import run_client
        from pubswap_client.organisation.outcome import conclude

        ended = run_client(settings, end)
        if ended is not None:
            conclude(settings.state)
    _exit_as(ended)


@client_commands.command("doctor")
@computing("data", "engine", "processes")
def doctor(
    settings: "ClientSettings",
    no_trial: Annotated[
        bool, typer.Option("--no-trial", help="Skip the trial step, which may take minutes.")
    ] = False,
) -> None:
    """Check everything that training needs, and recommend fixes.

    It takes the options of `start`, except --until.

    It checks in this order: the state folder and its membership; the coordinator, the token and the
    run; your own policy against the run; the model's files against the run's; the chat template;
    the private problems (lengths, ids, answers that their verifier cannot read); the device and an
    estimate of the memory; the path of the update. It then makes one private step on your data,
    and says how long a round of such steps takes.

    It changes and sends nothing. It asks the coordinator for its version and the run, and discards
    the step's adapter. The report names lines and ids, and contains no prompt or answer.

    Exit status: 0 if nothing failed (warnings are possible), 1 otherwise.
    """
    from pubswap_client.doctor.examination import run_doctor

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with until_stopped():
        healthy = run_doctor(settings, not no_trial)
    raise typer.Exit(0 if healthy else 1)


@computing("engine")
def evaluate(
    settings: "ClientSettings",
) -> None:
    """Evaluate every round's adapter on the coordinator's test set (role: evaluator)."""
    log_to(sys.stderr, settings.log_format)
    with until_stopped():
        from pubswap_client.daemon.session import run_evaluator

        _exit_as(run_evaluator(settings))


def _exit_as(ended: RunState | None) -> None:
    if ended == "cancelled":
        raise typer.Exit(CANCELLED)
