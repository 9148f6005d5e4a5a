"""The commands of organisations and operators; torch is imported only by those that train."""

import json
import logging
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pubswap_client.bundle.commands import bundle_commands
from pubswap_client.consent.commands import approve, deny, policy_commands, print_first_look
from pubswap_client.coordinator.tls import TlsFiles
from pubswap_client.daemon.signals import until_stopped
from pubswap_client.data.commands import data_commands
from pubswap_client.demo.commands import demo, demo_federate
from pubswap_client.ledger.commands import audit_commands
from pubswap_client.operator import ending, members, runs, viewers
from pubswap_client.operator.exporting import export, verify
from pubswap_client.options import Data, Engine, Given, Processes, computing
from pubswap_client.organisation.commands import adapter, leave, relay, status
from pubswap_client.personal.command import personalize
from pubswap_client.privacy.commands import privacy_commands
from pubswap_client.recipes.commands import recipe_commands
from pubswap_client.state.membership import membership_path
from pubswap_protocol.command_line.amounts import seconds_of
from pubswap_protocol.command_line.logs import log_to
from pubswap_protocol.command_line.statuses import CANCELLED
from pubswap_protocol.errors import InvalidSettings
from pubswap_protocol.messages import Role, RunState

run_commands = typer.Typer(help="Create, watch and move runs.", no_args_is_help=True)
run_commands.command("create")(runs.create)
run_commands.command("list")(runs.list_runs)
run_commands.command("show")(runs.show)
run_commands.command("log")(runs.log)
run_commands.command("set")(runs.set_)
run_commands.command("start")(runs.start)
run_commands.command("pause")(runs.pause)
run_commands.command("resume")(runs.resume)
run_commands.command("cancel")(ending.cancel)
run_commands.command("archive")(ending.archive)
run_commands.command("delete")(ending.delete)
run_commands.command("exclude")(ending.exclude)
run_commands.command("rollback")(ending.rollback)
run_commands.command("export")(export)

export_commands = typer.Typer(help="Check what was exported.", no_args_is_help=True)
export_commands.command("verify")(verify)

member_commands = typer.Typer(help="See, suspend and revoke members.", no_args_is_help=True)
member_commands.command("list")(members.list_members)
member_commands.command("suspend")(members.suspend)
member_commands.command("reinstate")(members.reinstate)
member_commands.command("revoke")(ending.revoke)
member_commands.command("reissue")(members.reissue)
member_commands.command("certificate")(members.certificate)

viewer_commands = typer.Typer(help="Let people look at the dashboard.", no_args_is_help=True)
viewer_commands.command("add")(viewers.add)
viewer_commands.command("list")(viewers.list_viewers)
viewer_commands.command("remove")(viewers.remove)

client_commands = typer.Typer(help="Take part in a run as an organisation.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands of organisations and operators, and `demo`."""
    client_commands.add_typer(audit_commands, name="audit")
    client_commands.add_typer(privacy_commands, name="privacy")
    client_commands.add_typer(policy_commands, name="policy")
    client_commands.command("approve")(approve)
    client_commands.command("deny")(deny)
    client_commands.command("status")(status)
    client_commands.command("leave")(leave)
    client_commands.command("adapter")(adapter)
    client_commands.command("personalize")(personalize)
    app.add_typer(client_commands, name="client")
    app.add_typer(data_commands, name="data")
    app.add_typer(recipe_commands, name="recipe")
    app.add_typer(run_commands, name="run")
    app.add_typer(export_commands, name="export")
    app.add_typer(bundle_commands, name="bundle")
    app.add_typer(member_commands, name="member")
    app.add_typer(viewer_commands, name="viewer")
    app.command("invite")(members.invite)
    app.command("evaluate")(evaluate)
    app.command("relay")(relay)
    app.command("demo")(demo)
    app.command("demo-federate")(demo_federate)


@client_commands.command("enroll")
def enroll(
    coordinator: Annotated[str, typer.Option(help="The coordinator's address.")],
    invite: Annotated[str, typer.Option(help="The one-time code from the operator.")],
    state: Annotated[Path, typer.Option(help="Where to keep the token.")] = Path("pubswap-state"),
    ca_file: Annotated[
        Path | None, typer.Option(help="The CA of the coordinator's certificate (PEM).")
    ] = None,
    client_cert: Annotated[
        Path | None, typer.Option(help="This organisation's client certificate (PEM).")
    ] = None,
    client_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
) -> None:
    """Exchange an invite for this organisation's long-lived token.

    It shows what the run asks, and writes a policy.toml beside the token that allows that and no
    more. If you have put one there before, approve the run with `pubswap client approve`.

    The TLS files stay where they are; their paths are kept beside the token. Should anything go
    wrong in the middle, the same command with the same folder gets the same token again.
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
    follow = "client start --data private.jsonl" if membership.role == "client" else "evaluate"
    typer.echo(f"Next: pubswap {follow} --state {state}")


@client_commands.command("start")
@computing
def start(
    given: Given,
    data: Data = None,
    engine: Engine = None,
    processes: Processes = None,
    until: Annotated[
        str | None,
        typer.Option(help="End after the last step that fits into this time, such as 55m."),
    ] = None,
) -> None:
    """Train on the private data until the run ends.

    Stop at any time, with Ctrl-C, SIGTERM or a power cut, and start again: it goes on after its
    last finished step, which it keeps in the state folder. `pubswap client doctor` with the same
    options tells beforehand what is missing, and how long a round will take; `pubswap client
    status` beside it shows how it goes. In the end it says what came out, and leaves a summary and
    the adapter in the state folder.

    What is trained is the run's to say. Where and on what is said here or in a client.toml, for
    example: micro_batch_tokens, gradient_checkpointing, shard, track = ["tensorboard"], [vllm].

    Exit status: 0 if the run is finished, 3 if it is cancelled, 75 if the time of --until is up,
    130 if this was stopped, 1 if it failed.
    """
    end = time.monotonic() + seconds_of(until, "--until") if until is not None else None
    settings = given.settings(data=data, engine=engine, processes=processes)
    log_to(sys.stderr, settings.log_format)
    with until_stopped(end):
        from pubswap_client.daemon.session import run_client
        from pubswap_client.organisation.outcome import conclude

        ended = run_client(settings, end)
        if ended is not None:
            conclude(settings.state)
    _exit_as(ended)


@client_commands.command("doctor")
@computing
def doctor(
    given: Given,
    data: Data = None,
    engine: Engine = None,
    processes: Processes = None,
    role: Annotated[Role, typer.Option(help="What this member does in the run.")] = Role.CLIENT,
    run: Annotated[
        Path | None,
        typer.Option(help="A bundle's run.json: examine for that run, without a coordinator."),
    ] = None,
    no_trial: Annotated[
        bool, typer.Option("--no-trial", help="Try no step: seconds instead of a step's minutes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check all that training needs, or an evaluator, and say what to do.

    It takes the options of `start`, but for --until.

    In this order: the state folder and its membership; the coordinator, the token and the run;
    the run against your own policy; the model's files against the run's; chat template and end of
    sequence; the private problems (lengths, ids, answers that their own verifier refuses); the
    device, and an estimate of the memory that training takes; the rollout engine; the path of the
    update; and one private step on your data, from which a round's duration and traffic are
    predicted. For an evaluator: the same without policy, data, update and step, with the operator's
    test problems and the memory of sampling.

    Nothing is changed or sent: the coordinator is asked for its version, the run and its problems,
    the step's adapter is thrown away, and the report names lines and ids, but holds no prompt or
    answer.

    With --run FILE, the run card of a bundle, what needs a membership or a coordinator is left out:
    so a machine is examined before anything reaches it.

    Exit status: 0 if nothing failed (there may be warnings), 1 otherwise.
    """
    from pubswap_client.doctor.examination import run_doctor

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    settings = given.settings(data=data, engine=engine, processes=processes)
    with until_stopped():
        healthy = run_doctor(settings, not no_trial, as_json, role, run)
    raise typer.Exit(0 if healthy else 1)


@computing
def evaluate(
    given: Given,
    engine: Engine = None,
    adapters: Annotated[
        Path | None,
        typer.Option(
            help="Score the PEFT folders in this one instead, and compare with its `all`."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --adapters: print JSON.")] = False,
) -> None:
    """Evaluate every round's adapter on the coordinator's test set (role: evaluator).

    With --adapters it scores what `pubswap admin contributions` or `replay` has written, or any
    adapter of the run, and hands nothing in. Each answers the same problems with the same draws.
    Where a folder `all` lies beside an adapter, the difference is paired by problem.
    """
    settings = given.settings(engine=engine)
    log_to(sys.stderr, settings.log_format)
    with until_stopped():
        from pubswap_client.daemon.comparison import compared, table
        from pubswap_client.daemon.session import compare_adapters, run_evaluator

        if adapters is None:
            _exit_as(run_evaluator(settings))
            return
        found = compared(compare_adapters(settings, adapters))
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        Console(markup=False).print(table(found))


def _exit_as(ended: RunState | None) -> None:
    if ended == "cancelled":
        raise typer.Exit(CANCELLED)
