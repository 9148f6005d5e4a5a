"""`pubswap client policy`, `approve` and `deny`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from pubswap_client.command_line import Yes, confirm
from pubswap_client.consent.approval import Approval, read_approval, save_approval, save_denial
from pubswap_client.consent.consent import adopt, refused_now, utc_now
from pubswap_client.consent.ledger import sent_since
from pubswap_client.consent.policy import LocalPolicy, load_policy, policy_path
from pubswap_client.consent.proposal import FACTS, MESSAGES, Proposal, proposal_of
from pubswap_client.consent.rules import changes, compare
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.state.membership import StoredMembership, load_membership, membership_path
from pubswap_protocol.bounds import escaped, printable
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings, PubSwapError
from pubswap_protocol.messages import RunView
from pubswap_protocol.model import model_card
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.tensors.update_encoding import largest_update
from pubswap_protocol.terms import differing, setting_lines

policy_commands = typer.Typer(
    help="Show this organisation's policy, and test it on a run.", no_args_is_help=True
)

State = Annotated[Path, typer.Option(help="The folder with token, progress and policy.toml.")]
STATE = Path("pubswap-state")


@policy_commands.command("show")
def show(
    state: State = STATE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the policy as JSON.")] = False,
) -> None:
    """Show the current policy, the decision on the run, and today's traffic."""
    policy = _policy(policy_path(state))
    if as_json:
        typer.echo(escaped(policy.model_dump_json(indent=2)))
        return
    table = Table("key", Column("value", overflow="fold"), "meaning")
    for name, field in LocalPolicy.model_fields.items():
        table.add_row(name, _text(getattr(policy, name)), field.description)
    Console(markup=False).print(table)
    if membership_path(state).exists():
        member, sent = load_membership(state).membership, sent_since(state, utc_now())
        typer.echo(_decision(read_approval(state, member.run)))
        typer.echo(f"Sent today (UTC): {sent:,} bytes.")


@policy_commands.command("check")
def check(
    run_file: Annotated[
        str | None,
        typer.Argument(help="A run's TOML file, before enrolment; by default the enrolled run."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="By default the state folder's policy.toml.")
    ] = None,
    state: State = STATE,
) -> None:
    """Test the policy on a run: its settings, what is allowed, and what is refused now.

    Before you enrol, ask the operator for the run's file; an invite does not describe the run.
    This command changes nothing.

    Exit status: 0 if everything is allowed, 1 otherwise.
    """
    rules = _policy(policy or policy_path(state))
    if run_file is not None:
        proposal = _proposal_of_file(run_file)
        refused = _refused(rules, proposal)
    else:
        stored = load_membership(state)
        proposal = proposal_of(_view(state, stored), stored.coordinator)
        refused = [
            f"{refusal.code}: {refusal.detail}" for refusal in refused_now(state, rules, proposal)
        ]
    print_compared(rules, proposal, refused)
    if refused:
        raise typer.Exit(1)
    typer.echo("The policy allows this.")


def approve(state: State = STATE, yes: Yes = False) -> None:
    """Approve the run's terms, after showing its settings beside the policy.

    If you have approved the run before, only what has changed since is shown.

    With approve = "every-round" in the policy, this approves the current round. A waiting daemon
    continues automatically.
    """
    policy, stored = _policy(policy_path(state)), load_membership(state)
    view = _view(state, stored)
    proposal = proposal_of(view, stored.coordinator)
    refused = _refused(policy, proposal)
    if changed := _changed(state, policy, proposal):
        print_changed(changed, refused)
    else:
        print_compared(policy, proposal, refused)
    typer.echo(f"The run's terms: {digest_of((proposal.terms or '').encode())}")
    if refused:
        typer.echo("The policy refuses this, even if the run is approved.")
    round_ = max(1, view.round)
    scope = f", round {round_}" if policy.approve == "every-round" else ""
    confirm(f"This approves run {view.name}{scope} for this organisation.", yes)
    save_approval(state, proposal, round_)
    typer.echo(f"Approved: run {view.name}{scope}.")


def deny(state: State = STATE) -> None:
    """Take no part in the run until it is approved; a running daemon stays away from now on."""
    member = load_membership(state).membership
    save_denial(state, member.run)
    typer.echo(f"Denied: run {member.run_name}. To undo this: `pubswap client approve`")


def print_first_look(state: Path, stored: StoredMembership) -> None:
    """After enrolment, print what the run asks, and write a policy unless there is one."""
    try:
        view = _view(state, stored)
        new_policy = adopt(state, view, stored.coordinator)
        policy = _policy(policy_path(state))
    except PubSwapError as error:  # the enrolment has succeeded anyway
        typer.echo(f"The policy was not checked: {error.detail}", err=True)
        return
    proposal = proposal_of(view, stored.coordinator)
    print_compared(policy, proposal, _refused(policy, proposal))
    if new_policy is not None:
        typer.echo(f"{new_policy} allows this and no more: read it. The run counts as approved.")
    elif policy.approve != "never":
        typer.echo("Approve it with `pubswap client approve` before the daemon takes part.")


def _policy(path: Path) -> LocalPolicy:
    if not path.exists():
        raise InvalidSettings(
            f"There is no {path}. `pubswap client enroll` and `pubswap client start` write it; is "
            "this the right --state?"
        )
    return load_policy(path)


def _view(state: Path, stored: StoredMembership) -> RunView:
    from pubswap_client.consent.member_client import member_client

    with member_client(state, stored, ONCE) as api:
        return api.run(stored.membership.run)


def _proposal_of_file(run_file: str) -> Proposal:
    from pubswap_client.base_model import local_folder
    from pubswap_client.recipes.recipe import load_recipe

    recipe = load_recipe(run_file)
    settings, source = recipe.run_settings, recipe.model.source
    folder = local_folder(recipe.model.location, recipe.model.revision)
    if folder is None:
        typer.echo(f"The base model {source} is not on this machine: not checked.", err=True)
        return Proposal(settings, recipe.name, model=source)
    card = model_card(folder, settings.lora, source, recipe.model.revision)
    size = largest_update(card.layout, settings)
    return Proposal(
        settings, recipe.name, model=source, weights=card.weights_digest, update_bytes=size
    )


def _refused(policy: LocalPolicy, proposal: Proposal) -> list[str]:
    """What the policy refuses of the run, regardless of approval."""
    return [f"{line.code}: {line.what}" for line in compare(policy, proposal) if line.code]


def print_compared(policy: LocalPolicy, proposal: Proposal, refused: list[str]) -> None:
    """Print one line for each thing that the run asks for, and whether that is allowed."""
    table = Table(
        Column(no_wrap=True),
        Column("the run asks", overflow="fold"),
        Column("the policy allows", overflow="fold"),
        Column(no_wrap=True),
    )
    for line in compare(policy, proposal):
        # The text is the coordinator's, and must not be able to change what a person sees here.
        asks = printable(line.asks)
        table.add_row(line.what, asks, line.allows, "✗" if line.code else "✓")
    Console(markup=False).print(table)
    named = {*FACTS.values(), *MESSAGES.values(), *policy.limits}
    changed = differing(setting_lines(RunSettings()), setting_lines(proposal.settings))
    others = [f"  {name} = {value}" for name, (_, value) in changed.items() if name not in named]
    if others:
        typer.echo("\n".join(["Other settings that differ from their defaults:", *others]))
    _print_refused(refused)


def print_changed(changed: dict[str, tuple[str, str]], refused: list[str]) -> None:
    """Print one line for each thing that the run asks otherwise than was approved."""
    table = Table(
        "changed since the approval",
        Column("approved", overflow="fold"),
        Column("now", overflow="fold"),
    )
    for name, (old, new) in changed.items():
        table.add_row(printable(name), printable(old), printable(new))
    Console(markup=False).print(table)
    _print_refused(refused)


def _print_refused(refused: list[str]) -> None:
    for reason in refused:
        typer.echo(f"refused: {printable(reason)}")


def _changed(state: Path, policy: LocalPolicy, proposal: Proposal) -> dict[str, tuple[str, str]]:
    """What has changed since an earlier approval; empty if there is none to compare with."""
    try:
        earlier = read_approval(state, proposal.run or "")
    except InvalidSettings as error:  # this approval replaces it
        typer.echo(error.detail, err=True)
        return {}
    if earlier is None or earlier.terms is None:
        return {}
    return changes(policy, proposal, earlier)


def _text(value: object) -> str:
    if value is None:
        return "any"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(f"{name} {limit}" for name, limit in value.items()) or "any"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def _decision(approval: Approval | None) -> str:
    if approval is None:
        return "Nobody has approved the run yet."
    decision = "approved" if approval.approved else "denied"
    round_ = f" in round {approval.round}" if approval.round else ""
    terms = f" Its terms: {digest_of(approval.terms.encode())}" if approval.terms else ""
    return f"The run was {decision}{round_}, {approval.at.astimezone():%F %T %Z}.{terms}"
