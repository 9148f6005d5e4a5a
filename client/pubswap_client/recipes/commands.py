"""`pubswap recipe ...`: which recipes there are, what one comes to, and whether it can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pubswap_client.recipes.check import RecipeCost
    from pubswap_client.recipes.recipe import Reading, Recipe
    from pubswap_protocol.tensors.adapter import AdapterLayout

Source = Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE instead of the file's, such as swap.period=4; again."),
]

recipe_commands = typer.Typer(
    help="List, show and check recipes, which are run files.", no_args_is_help=True
)


@recipe_commands.command("list")
def list_recipes() -> None:
    """List the recipes that come with PubSwap."""
    from pubswap_client.recipes.layers import shipped_folder, shipped_recipes
    from pubswap_client.recipes.recipe import load_recipe

    for name, path in shipped_recipes().items():
        recipe = load_recipe(path)
        runs = recipe.sweep.runs(recipe.clients)
        typer.secho(name, bold=True, nl=False)
        typer.echo(f"  {recipe.about}")
        typer.echo(f"    {recipe.model.source}; {_data_text(recipe)}; {runs} runs")
    typer.echo(f"They are in {shipped_folder()}")


@recipe_commands.command("show")
def show(
    recipe: Source,
    changes: Changes = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print one TOML file that extends nothing.")
    ] = False,
) -> None:
    """Show every value of a recipe, and where it comes from."""
    from rich.console import Console
    from rich.table import Table

    from pubswap_client.recipes.layers import parse_set
    from pubswap_client.recipes.recipe import load_recipe, read_recipe
    from pubswap_client.recipes.resolved import entries, toml_text, value_text

    given = parse_set(changes or [])
    loaded, reading = load_recipe(recipe, given), read_recipe(recipe, given)
    if as_toml:
        typer.echo(toml_text(reading, loaded), nl=False)
        return
    table = Table("key", "value", "from")
    for key, value, origin in entries(reading, loaded):
        table.add_row(key, value_text(value), origin, style="dim" if origin == "default" else None)
    for number, axes in enumerate(loaded.sweep.grid, start=1):
        table.add_section()
        for axis, values in axes.items():
            table.add_row(f"sweep {number}: {axis}", value_text(values), _origin(reading))
    Console().print(table)


@recipe_commands.command("check")
def check(recipe: Source, changes: Changes = None) -> None:
    """Say all that is wrong with a recipe, and what a run of it takes; downloads nothing.

    Exit status: 0 if it can be run, 1 if not.
    """
    from pubswap_client.recipes.check import impossible, repeated
    from pubswap_client.recipes.layers import parse_set
    from pubswap_client.recipes.recipe import read_recipe

    reading = read_recipe(recipe, parse_set(changes or []))
    faults, layout, notes = list(reading.faults), None, []
    if reading.recipe is not None:
        layout, found = _model(reading.recipe)
        faults += [*found, *_faults(reading.recipe)]
    if not reading.faults:
        faults += impossible(reading)
        notes = [] if faults else list(repeated(reading))
    for fault in dict.fromkeys(faults):
        typer.secho("wrong: ", fg="red", nl=False)
        typer.echo(fault)
    if faults or reading.recipe is None:
        typer.echo(f"{reading.path} cannot be run.")
        raise typer.Exit(1)
    from pubswap_client.recipes.check import cost_of

    for line in _cost_lines(reading.recipe, cost_of(reading.recipe, layout)):
        typer.echo(line)
    for note in notes:
        typer.echo(f"note:      {note}")


def _faults(recipe: Recipe) -> Iterator[str]:
    from pubswap_client.recipes.sets import set_faults
    from pubswap_protocol.errors import InvalidSettings
    from pubswap_protocol.verifiers import check_usable

    try:
        check_usable(recipe.verifier)
    except InvalidSettings as error:
        yield f"verifier: {error.detail}"
    yield from set_faults(recipe)


def _model(recipe: Recipe) -> tuple[AdapterLayout | None, list[str]]:
    """The adapter's layout if the model is here, and what is wrong with it."""
    from pubswap_client.base_model import local_folder
    from pubswap_protocol.errors import InvalidSettings
    from pubswap_protocol.model import model_layout

    try:
        folder = local_folder(recipe.model.place, recipe.model.revision)
        return (model_layout(folder, recipe.lora) if folder else None), []
    except InvalidSettings as error:
        return None, [f"model: {error.detail}"]


def _cost_lines(recipe: Recipe, cost: RecipeCost) -> Iterator[str]:
    from pubswap_client.operator.tables import size_text
    from pubswap_client.recipes.check import KEEP_ROUNDS

    yield f"{recipe.name}: {recipe.method}, {recipe.clients} clients, base {recipe.model.source}"
    yield f"steps:     {cost.rounds} rounds x {cost.local_steps} = {cost.steps} of each client"
    yield f"           {cost.public_steps} of them public"
    yield f"responses: {cost.responses} of each client, at most"
    yield f"           {recipe.grpo.max_response_tokens} tokens each"
    if cost.adapter_bytes is None or cost.update_bytes is None:
        yield "adapter:   its size is known when the base model is here"
    else:
        yield (
            f"adapter:   {size_text(cost.adapter_bytes)}; a client sends "
            f"{size_text(cost.update_bytes)} a round, "
            f"{size_text(cost.update_bytes * cost.rounds)} in all"
        )
        assert cost.coordinator_bytes is not None
        assert cost.member_bytes is not None
        yield (
            f"disk:      {size_text(cost.coordinator_bytes)} on the coordinator at most, with the "
            f"updates of {KEEP_ROUNDS} rounds kept (PUBSWAP_KEEP_ROUNDS)"
        )
        yield f"           {size_text(cost.member_bytes)} on each member, without the base model"
    yield f"sweep:     {cost.settings} settings, {cost.seeds} seeds: {cost.runs} runs"


def _data_text(recipe: Recipe) -> str:
    spec = recipe.data.prepare
    if spec is None:
        return str(recipe.data.folder or recipe.data.public)
    sizes = spec.sizes()
    # Without sizes a file is divided by its length, which is not known before it is read.
    known = (
        f"private {spec.clients} x {sizes.private}, public {sizes.public}, test {sizes.test}"
        if all(sizes)
        else "sizes by the file's length"
    )
    return f"{spec.source}, alpha {spec.alpha:g}: {known}"


def _origin(reading: Reading) -> Any:
    return reading.merged.layers["sweep.grid"].origin
