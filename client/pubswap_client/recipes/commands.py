"""`pubswap recipe ...`: list recipes, show one's values, and check that it can be run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from pubswap_client.command_line import AsJson, Changes, table_console
from pubswap_protocol.bounds import printable
from pubswap_protocol.command_line.toml_values import value_text

if TYPE_CHECKING:
    from pubswap_client.recipes.recipe import Reading, Recipe

Source = Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")]

TokensPerSecond = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        help="Tokens per second of the slowest client, as its `pubswap client doctor` measures "
        "them, to estimate a run's duration.",
    ),
]

recipe_commands = typer.Typer(
    help="List, show and check recipes, which are run files.", no_args_is_help=True
)


@recipe_commands.command("list")
def list_recipes(as_json: AsJson = False) -> None:
    """List the recipes that come with PubSwap."""
    from pubswap_client.recipes.inheritance import shipped_folder, shipped_recipes
    from pubswap_client.recipes.recipe import load_recipe

    recipes = {name: load_recipe(path) for name, path in shipped_recipes().items()}
    if as_json:
        listed = [
            {"name": name, "about": recipe.about, "model": recipe.model.source}
            | {"data": _data_text(recipe), "runs": recipe.sweep.runs(recipe.clients)}
            for name, recipe in recipes.items()
        ]
        typer.echo(json.dumps(listed, indent=2))
        return
    for name, recipe in recipes.items():
        runs = recipe.sweep.runs(recipe.clients)
        typer.secho(name, bold=True, nl=False)
        typer.echo(f"  {recipe.about}")
        typer.echo(f"    {recipe.model.source}; {_data_text(recipe)}; {runs} runs")
    typer.echo(f"They are in {shipped_folder()}")


def _data_text(recipe: Recipe) -> str:
    spec = recipe.data.prepare
    if spec is None:
        return str(recipe.data.folder or recipe.data.public)
    sizes = spec.sizes()
    # Without sizes a file is divided by its length, which is unknown until it is read.
    sizes_text = (
        f"private {spec.clients} x {sizes.private}, public {sizes.public}, test {sizes.test}"
        if all(sizes)
        else "sizes by the file's length"
    )
    return f"{spec.source}, alpha {spec.alpha:g}: {sizes_text}"


@recipe_commands.command("show")
def show(
    recipe: Source,
    changes: Changes = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print one self-contained TOML file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every value of a recipe, with defaults and derived values marked."""
    from pubswap_client.recipes.inheritance import parse_set
    from pubswap_client.recipes.recipe import read_recipe
    from pubswap_client.recipes.shown import DEFAULT, toml_text, values_and_notes

    reading = read_recipe(recipe, parse_set(changes or []))
    if as_toml:
        typer.echo(toml_text(reading), nl=False)
        return
    if as_json:
        shown = {key: value for key, value, _ in values_and_notes(reading)}
        typer.echo(json.dumps(shown, indent=2, default=str))
        return
    table = Table(*(Column(heading, overflow="fold") for heading in ("key", "value")), "")
    for key, value, note in values_and_notes(reading):
        text = f"from {note}" if note not in ("", DEFAULT) else note
        table.add_row(key, value_text(value), text, style="dim" if note else None)
    for number, axes in enumerate(reading.sound().sweep.grid, start=1):
        table.add_section()
        for axis, values in axes.items():
            table.add_row(f"sweep {number}: {axis}", value_text(values))
    table_console().print(table)


@recipe_commands.command("check")
def check(
    recipe: Source, changes: Changes = None, tokens_per_second: TokensPerSecond = None
) -> None:
    """List the errors of a recipe and estimate the cost of a run; downloads nothing.

    Exit status: 0 if the recipe can run, 1 otherwise.
    """
    from pubswap_client.recipes.inheritance import parse_set
    from pubswap_client.recipes.recipe import read_recipe

    print_check(read_recipe(recipe, parse_set(changes or [])), tokens_per_second)


def print_check(reading: Reading, tokens_per_second: float | None = None) -> None:
    """Print what `pubswap recipe check` does, and end the command if there are faults."""
    from pubswap_client.recipes.check import (
        cost_lines,
        device_hours,
        evaluated_responses,
        examined,
        repeated,
    )

    faults, layout, example = examined(reading)
    for fault in dict.fromkeys(faults):
        typer.secho("wrong: ", fg="red", nl=False)
        typer.echo(fault)
    if faults:
        typer.echo(f"{reading.path} cannot be run.")
        raise typer.Exit(1)
    for line in cost_lines(reading.sound(), layout, tokens_per_second):
        typer.echo(line)
    if example is not None:
        typer.echo(f"prompt:    {printable(example)}")
    if tokens_per_second is not None:
        hours = device_hours(reading, tokens_per_second)
        typer.echo(f"simulated: {hours:.1f} hours on one device in all, at most")
        if evaluated_responses(reading.sound()) is None:
            typer.echo("           without evaluation: the number of test problems is unknown here")
    for note in repeated(reading):
        typer.echo(f"note:      {note}")
