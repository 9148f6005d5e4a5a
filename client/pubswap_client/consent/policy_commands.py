"""`pubswap client policy`, `approve` and `deny`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from pubswap_client.command_line import Yes, confirm
from pubswap_client.consent.approval import read_approval, save_approval, save_denial
from pubswap_client.consent.consent import adopt
from pubswap_client.consent.policy import LocalPolicy, load_policy, policy_path
from pubswap_client.consent.proposal import FACTS, Proposal, proposal_of
from pubswap_client.consent.rules import Code, Refusal, compare, judge
from pubswap_client.coordinator.retry import ONCE
from pubswap_client.state.membership import StoredMembership, load_membership
from pubswap_protocol.bounds import printable
from pubswap_protocol.digests import digest_of
from pubswap_protocol.errors import InvalidSettings, PubSwapError
from pubswap_protocol.messages import RunView
from pubswap_protocol.settings import RunSettings
from pubswap_protocol.terms import differing, setting_lines

policy_commands = typer.Typer(help="Test this organisation's policy.", no_args_is_help=True)

State = Annotated[Path, typer.Option(help="The folder with token, progress and policy.toml.")]
STATE = Path("pubswap-state")


@policy_commands.callback()
def _group() -> None:
    """Keep `check` a command of a group, as the policy may get more."""


@policy_commands.command("check")
def check(state: State = STATE) -> None:
    """Test the policy on the run: its settings, what is allowed, and what is refused now.

    This command changes nothing.

    Exit status: 0 if everything is allowed, 1 otherwise.
    """
    if _shown(state)[1]:
        raise typer.Exit(1)
    typer.echo("The policy allows this.")


def approve(state: State = STATE, yes: Yes = False) -> None:
    """Approve the run's terms, after showing its settings beside the policy.

    It also names what has changed since you approved the run. A waiting daemon continues
    automatically.
    """
    proposal, refused = _shown(state)
    typer.echo(f"The run's terms: {digest_of(proposal.terms.encode())}")
    if any(each.code not in (Code.NOT_APPROVED, Code.DENIED) for each in refused):
        typer.echo("The policy refuses this, even if the run is approved.")
    confirm(f"This approves run {proposal.view.name} for this organisation.", yes)
    save_approval(state, proposal)
    typer.echo(f"Approved: run {proposal.view.name}.")


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
        _, refused = _shown(state, view)
    except PubSwapError as error:  # the enrolment has succeeded anyway
        typer.echo(f"The policy was not checked: {error.detail}", err=True)
        return
    if new_policy is not None:
        typer.echo(f"{new_policy} allows this and no more: read it. The run counts as approved.")
    elif refused:
        typer.echo("Approve it with `pubswap client approve` before the daemon takes part.")


def _shown(state: Path, view: RunView | None = None) -> tuple[Proposal, tuple[Refusal, ...]]:
    """Print what the run asks, what the policy allows, and what is refused now."""
    path, stored = policy_path(state), load_membership(state)
    if not path.exists():
        raise InvalidSettings(
            f"There is no {path}. `pubswap client enroll` and `pubswap client start` write it; is "
            "this the right --state?"
        )
    policy = load_policy(path)
    proposal = proposal_of(view or _view(state, stored), stored.coordinator)
    try:
        approval = read_approval(state, proposal.view.id)
    except InvalidSettings as error:  # the next approval replaces it
        typer.echo(error.detail, err=True)
        approval = None
    refused = judge(policy, proposal, approval)
    print_compared(policy, proposal, refused)
    return proposal, refused


def _view(state: Path, stored: StoredMembership) -> RunView:
    from pubswap_client.consent.member_client import member_client

    with member_client(state, stored, ONCE) as api:
        return api.run(stored.membership.run)


def print_compared(
    policy: LocalPolicy, proposal: Proposal, refused: Sequence[Refusal] = ()
) -> None:
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
    named = {*FACTS.values(), "system_prompt", "few_shot", *policy.limits}
    changed = differing(setting_lines(RunSettings()), setting_lines(proposal.settings))
    others = [f"  {name} = {value}" for name, (_, value) in changed.items() if name not in named]
    if others:
        typer.echo("\n".join(["Other settings that differ from their defaults:", *others]))
    for each in refused:
        typer.echo(f"refused: {each.code}: {printable(each.detail)}")
