"""`pubswap run ...`: create, show and control runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape

from pubswap_client.command_line import AsJson, Changes, Run, table_console
from pubswap_client.operator.connecting import (
    DEFAULT_URL,
    CaFile,
    TokenFile,
    Url,
    connect,
    connected,
)
from pubswap_client.operator.responses import show_responses
from pubswap_client.operator.tables import members_table, rounds_table, runs_table, state_text
from pubswap_client.operator.watching import lines, step_rows
from pubswap_client.operator.watching import watch as watch_run
from pubswap_protocol import paths
from pubswap_protocol.bounds import MAX_NUMBER, escaped
from pubswap_protocol.command_line.amounts import counted, duration_text
from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar
from pubswap_protocol.messages import ChangeRun, Role, RunView

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient

SHOWN_ROUNDS = 50


def create(
    recipe: Annotated[str, typer.Argument(help="The run's TOML file, or a recipe's name.")],
    data: Annotated[
        Path | None, typer.Option(help="Folder for the sets of the recipe's data.prepare.")
    ] = None,
    initial_adapter: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the adapter to start from, as `pubswap run export` or PEFT writes it."
        ),
    ] = None,
    changes: Changes = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the cost and the whole run file.")
    ] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
) -> None:
    """Create a run from its file and open it for members.

    The coordinator receives the public and the test set. Private sets, if the recipe prepares any,
    stay in their folder, for you to hand to their organisations. `pubswap recipe show` prints the
    defaults that apply, and `pubswap recipe check` the cost of the run; --dry-run does both.
    """
    from pubswap_client.recipes.commands import print_check
    from pubswap_client.recipes.inheritance import parse_set
    from pubswap_client.recipes.recipe import read_recipe
    from pubswap_client.recipes.runfile import create_and_open, make_sets, prepare
    from pubswap_client.recipes.shown import toml_text

    reading = read_recipe(recipe, parse_set(changes or []))
    if dry_run:
        print_check(reading)
        typer.echo(toml_text(reading), nl=False)
        return
    loaded = reading.sound()
    files = make_sets(loaded, data)
    with progress_bar() as progress:
        next_stage(progress, "checking the sets and the base model")
        prepared = prepare(loaded, files, initial_adapter)
        with connect(url, token_file, ca_file) as api:
            next_stage(progress, "sending the run to the coordinator, which checks it")
            run = create_and_open(api, prepared)
    typer.echo(f"Run {run.name} is open: {run.id}")
    typer.echo(
        f"Its method is {loaded.method}, with {counted(loaded.clients, 'client')} and "
        f"{counted(loaded.rounds, 'round')} of {counted(loaded.local_steps, 'step')}."
    )
    if files.private:
        typer.echo("Private sets, one for each organisation and for nobody else:")
        for path in files.private:
            typer.echo(f"  {path}")
    typer.echo(f"Next: pubswap invite {run.name} NAME, once for each organisation.")


@connected
def list_runs(api: "CoordinatorClient", as_json: AsJson = False) -> None:
    """List the runs, newest first."""
    runs = api.runs()
    if as_json:
        typer.echo(json.dumps([run.model_dump(mode="json") for run in runs], indent=2))
        return
    if not runs:
        typer.echo("There are no runs. Create one: pubswap run create FILE")
        return
    table_console().print(runs_table(runs))
    for run in runs:
        if run.waiting_for is not None:
            typer.echo(f"{run.name} waits: {run.waiting_for}")


@connected
def show(
    api: "CoordinatorClient",
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole run as JSON.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep updating until the run ends; not with --json.")
    ] = False,
    responses: Annotated[
        bool,
        typer.Option(
            "--responses", help="Show responses of each topic with their verdicts instead."
        ),
    ] = False,
    round_: Annotated[
        int | None,
        typer.Option(
            "--round",
            min=0,
            max=MAX_NUMBER,
            help="With --responses: the round, instead of the last evaluated one; 0 is the start.",
        ),
    ] = None,
) -> None:
    """Show a run: its last rounds, pass@1, bytes, and each member's progress.

    --responses shows what the policy does: up to ten responses of each topic to problems of the
    test set, half of them right, as the evaluator judged them. Long texts are cut in the middle.
    """
    if round_ is not None and not responses:
        raise typer.BadParameter("--round chooses the round of --responses. Give both.")
    if responses:
        if watch:
            raise typer.BadParameter("--watch shows a table, without responses. Give one of them.")
        show_responses(api, run, round_, as_json)
    elif as_json:
        if watch:
            raise typer.BadParameter("--watch shows a table; --json prints once. Give one of them.")
        typer.echo(escaped(api.whole_run(run).model_dump_json(indent=2)))
    elif watch:
        watch_run(lambda: _read(api, run), Console())
    else:
        table_console(markup=True).print(_read(api, run)[0])


def _read(api: "CoordinatorClient", run: str) -> tuple[RenderableType, bool]:
    """A run as tables, and whether it has ended."""
    view = api.run(run)
    rounds = list(api.rounds(view.id, after=max(-1, view.round - SHOWN_ROUNDS)))
    lines = [
        f"[bold]{view.name}[/bold] ({view.id}): {state_text(view)}, round {view.round} of "
        f"{view.settings.rounds}, {view.settings.method.name}, "
        f"base model: {escape(view.model.source)}"
    ]
    if view.activity is not None and not view.state.ended:
        lines.append(escape(view.activity))
    if view.waiting_for is not None:
        lines.append(f"[bold]It waits:[/bold] {escape(view.waiting_for)}")
    if view.left_seconds:
        lines.append(
            f"About {duration_text(view.left_seconds)} to its end, if rounds take as long."
        )
    if view.best is not None:
        score, best = f"{view.best.pass_at_1:.3f}", view.best.round
        lines.append(f"The best so far: pass@1 {score} after round {best}")
    if view.latest is not None and view.latest.warning is not None:
        lines.append(
            f"[bold]Suspicious:[/bold] {escape(view.latest.warning)}, in round "
            f"{view.latest.round}. Read them: pubswap run show {view.name} --responses"
        )
    if rounds and rounds[0].round > 0:
        lines.append(f"Rounds from {rounds[0].round} on; --json prints all of them.")
    start = "base" if view.settings.initial_adapter is None else "start"
    tables = rounds_table(rounds, start), members_table(view.members)
    return Group(*lines, *tables), view.state.ended


@connected
def log(
    api: "CoordinatorClient",
    run: Run,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until the run ends.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only events of this kind, such as update; may be repeated."),
    ] = None,
    member: Annotated[str | None, typer.Option(help="Only events of this member.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    steps: Annotated[
        bool, typer.Option("--steps", help="Print the figures of members' steps as CSV instead.")
    ] = False,
) -> None:
    """Print a run's append-only log of events.

    With --follow it continues through restarts of the coordinator and omits nothing. --steps prints
    what members report of each step as they make it: all that is kept.
    """
    if steps:
        if follow or kind or as_json:
            raise typer.BadParameter("--steps prints CSV once. Give it alone, or with --member.")
        for row in step_rows(api, run, member):
            typer.echo(row)
        return
    for line in lines(api, run, follow, as_json, kind or (), member):
        typer.echo(line)


@connected
def resize(
    api: "CoordinatorClient",
    run: Run,
    clients: Annotated[int, typer.Argument(min=1, max=MAX_NUMBER, help="How many there will be.")],
) -> None:
    """Change the number of clients of a run that has not started.

    For another setting, cancel the run and create a new one.
    """
    view = api.change_run(run, ChangeRun(clients=clients))
    typer.echo(f"Run {view.name} starts with {counted(view.settings.clients, 'client')}.")
    typer.echo(
        "Members that approved another number are asked again, unless their policy allows it."
    )


def _move(api: "CoordinatorClient", run: str, path: str) -> RunView:
    view: RunView = api.move_run(run, path)
    typer.echo(f"Run {view.name} is {state_text(view)}.")
    return view


@connected
def start(api: "CoordinatorClient", run: Run) -> None:
    """Start round 1, once all clients have enrolled, or at least members.minimum of them."""
    view = _move(api, run, paths.RUN_START)
    if all(member.role is not Role.EVALUATOR for member in view.members):
        typer.echo(
            "No evaluator has enrolled, so no pass@1 is measured. Invite one now, or after the "
            f"run: pubswap invite {view.name} judge --role evaluator"
        )


@connected
def pause(api: "CoordinatorClient", run: Run) -> None:
    """Pause a run: members hold their responses and updates until it is resumed.

    No new work is given out, deadlines stand still, and nothing becomes late. Private steps under
    way go on; `pubswap run show` says who holds what. Evaluators go on, too.
    """
    _move(api, run, paths.RUN_PAUSE)


@connected
def resume(api: "CoordinatorClient", run: Run) -> None:
    """Continue a paused run: members send what they have held."""
    _move(api, run, paths.RUN_RESUME)
