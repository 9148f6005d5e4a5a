"""The operator's irreversible commands: each asks first, and says what is lost."""

from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_client.command_line import Name, Run, Yes, confirm
from pubswap_client.operator.connecting import connected
from pubswap_client.operator.tables import state_text
from pubswap_protocol import paths
from pubswap_protocol.bounds import MAX_NUMBER
from pubswap_protocol.messages import Rollback, RunView

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient


@connected
def cancel(api: "CoordinatorClient", run: Run, yes: Yes = False) -> None:
    """End a run for good, keeping its adapters."""
    view = api.run(run)
    confirm(
        f"{_described(view)} Cancelling is final: its members stop, and the round under way is "
        "lost. The adapters of the rounds before it are kept.",
        yes,
    )
    api.move_run(view.id, paths.RUN_CANCEL)
    typer.echo(f"Run {view.name} is cancelled.")


@connected
def archive(api: "CoordinatorClient", run: Run, yes: Yes = False) -> None:
    """Free the disk space of an ended run, keeping its final and best adapters.

    Its settings, problem sets, evaluations, figures and log are kept too. Export the adapters of
    other rounds first.
    """
    view = api.run(run)
    confirm(
        f"{_described(view)} Archiving is final: all adapters but the final and the best one, "
        "and all updates and responses, are removed.",
        yes,
    )
    api.move_run(view.id, paths.RUN_ARCHIVE)
    typer.echo(f"Run {view.name} is archived. The coordinator frees its disk space soon.")


@connected
def delete(api: "CoordinatorClient", run: Run, yes: Yes = False) -> None:
    """Delete an ended run with all its adapters and its log.

    `pubswap run archive` keeps the final and best adapters, and the log.
    """
    view = api.run(run)
    confirm(
        f"{_described(view)} Deleting is final: its adapters, updates, evaluations and log are "
        "removed, and its members' tokens become invalid.",
        yes,
    )
    api.delete_run(view.id)
    typer.echo(
        f"Run {view.name} ({view.id}) is deleted. The coordinator frees its disk space soon."
    )


@connected
def exclude(
    api: "CoordinatorClient",
    run: Run,
    member: Annotated[str, typer.Argument(help="The member whose update to leave out.")],
    yes: Yes = False,
) -> None:
    """Leave a member's update out of the current round."""
    view = api.run(run)
    confirm(
        f"{_described(view)} The update of {member} will not count in round {view.round}, and "
        f"{member} cannot send another one in it.",
        yes,
    )
    updated = api.exclude(view.id, view.round, member)
    typer.echo(f"The update of {member} is left out of round {view.round} of {view.name}.")
    if updated.waiting_for is not None:
        typer.echo(f"It waits: {updated.waiting_for}")


@connected
def rollback(
    api: "CoordinatorClient",
    run: Run,
    to: Annotated[int, typer.Option(min=0, max=MAX_NUMBER, help="The round to go back to.")],
    yes: Yes = False,
) -> None:
    """Go back to the adapter of an earlier round and continue from there."""
    view = api.run(run)
    confirm(
        f"{_described(view)} It goes back to the adapter of round {to}: the rounds after it "
        "are trained again, and their updates are lost.",
        yes,
    )
    api.roll_back(view.id, Rollback(to=to))
    typer.echo(f"Run {view.name} continues in round {to + 1}, from the adapter of round {to}.")


@connected
def revoke(api: "CoordinatorClient", run: Run, name: Name, yes: Yes = False) -> None:
    """Invalidate a member's token for good; its earlier contributions count."""
    confirm(
        f"Revoking {name} of run {run} is final: its token becomes invalid at once, and its name "
        "stays taken.",
        yes,
    )
    api.revoke(run, name)
    typer.echo(f"{name} is revoked. To let the organisation back in, invite it under another name.")


def _described(view: RunView) -> str:
    members = ", ".join(member.name for member in view.members if member.active) or "nobody"
    return (
        f"Run {view.name} ({view.id}) is {state_text(view)}, in round {view.round} of "
        f"{view.settings.rounds}, with {members}."
    )
