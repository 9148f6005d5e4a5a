"""`pubswap viewer ...`: read-only access to the dashboard."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_client.command_line import AsJson, valid_name
from pubswap_client.operator.connecting import connected, print_elsewhere

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient

Name = Annotated[str, typer.Argument(help="The viewer's name, such as board.", callback=valid_name)]


@connected
def add(api: "CoordinatorClient", name: Name) -> None:
    """Create a token for viewing the dashboard, without actions or downloads.

    It is shown once. Send it over a channel you trust.
    """
    viewer = api.add_viewer(name)
    typer.echo(f"{name} signs in at {api.url}/ with this token, until you remove it:")
    typer.echo(f"  {viewer.token}")
    print_elsewhere(api.url)


@connected
def list_viewers(api: "CoordinatorClient", as_json: AsJson = False) -> None:
    """List the viewers of the dashboard."""
    viewers = api.viewers()
    if as_json:
        typer.echo(json.dumps([viewer.model_dump(mode="json") for viewer in viewers], indent=2))
        return
    if not viewers:
        typer.echo("There are no viewers. Add one: pubswap viewer add NAME")
    for viewer in viewers:
        typer.echo(f"{viewer.name}, since {viewer.created_at:%F}")


@connected
def remove(api: "CoordinatorClient", name: Name) -> None:
    """Invalidate a viewer's token and end its sessions."""
    api.remove_viewer(name)
    typer.echo(f"{name} is no longer a viewer.")
