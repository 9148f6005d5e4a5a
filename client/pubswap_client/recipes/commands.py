"""`pubswap recipe ...`: list recipes, show one's values, and check that it can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pubswap_client.recipes.recipe import Recipe
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
    from pubswap_client.recipes.inheritance import shipped_folder, shipped_recipes
    from pubswap_client.recipes.recipe import load_recipe

    for name, path in shipped_recipes().items():
        recipe = load_recipe(path)
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
    # Without sizes a file is divided by its length, which is not known before it is read.
    known = (
        f"private {spec.clients} x {sizes.private}, public {sizes.public}, test {sizes.test}"
        if all(sizes)
        else "sizes by the file's length"
    )
    return f"{spec.source}, alpha {spec.alpha:g}: {known}"


@recipe_commands.command("show")
def show(
    recipe: Source,
    changes: Changes = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print one TOML file that extends nothing.")
    ] = False,
) -> None:
    """Show every value of a recipe, and which are defaults or follow from another value."""
    from rich.console import Console
    from rich.table import Table

    from pubswap_client.recipes.inheritance import parse_set
    from pubswap_client.recipes.recipe import read_recipe
    from pubswap_client.recipes.shown import DEFAULT, toml_text, value_text, values_and_notes

    reading = read_recipe(recipe, parse_set(changes or []))
    if as_toml:
        typer.echo(toml_text(reading), nl=False)
        return
    table = Table("key", "value", "")
    for key, value, note in values_and_notes(reading):
        text = f"from {note}" if note not in ("", DEFAULT) else note
        table.add_row(key, value_text(value), text, style="dim" if note else None)
    for number, axes in enumerate(reading.sound().sweep.grid, start=1):
        table.add_section()
        for axis, values in axes.items():
            table.add_row(f"sweep {number}: {axis}", value_text(values))
    Console().print(table)


@recipe_commands.command("check")
def check(recipe: Source, changes: Changes = None) -> None:
    """Say all that is wrong with a recipe, and what a run of it takes; downloads nothing.

    Exit status: 0 if it can be run, 1 if not.
    """
    from pubswap_client.recipes.check import impossible, repeated
    from pubswap_client.recipes.inheritance import parse_set
    from pubswap_client.recipes.recipe import read_recipe

    reading = read_recipe(recipe, parse_set(changes or []))
    faults, layout = list(reading.faults), None
    if reading.recipe is not None:
        layout, more = _adapter_layout(reading.recipe)
        faults += [*more, *_faults(reading.recipe)]
    if not reading.faults:
        faults += impossible(reading)
    for fault in dict.fromkeys(faults):
        typer.secho("wrong: ", fg="red", nl=False)
        typer.echo(fault)
    if faults or reading.recipe is None:
        typer.echo(f"{reading.path} cannot be run.")
        raise typer.Exit(1)
    for line in _cost_lines(reading.recipe, layout):
        typer.echo(line)
    for note in repeated(reading):
        typer.echo(f"note:      {note}")


def _faults(recipe: Recipe) -> Iterator[str]:
    from pubswap_client.operator.runfile import set_faults
    from pubswap_protocol.errors import InvalidSettings
    from pubswap_protocol.verifiers import check_usable

    try:
        check_usable(recipe.verifier)
    except InvalidSettings as error:
        yield f"verifier: {error.detail}"
    yield from set_faults(recipe)


def _adapter_layout(recipe: Recipe) -> tuple[AdapterLayout | None, list[str]]:
    """The adapter's layout if the model is here, and what is wrong with the model."""
    from pubswap_client.base_model import local_folder
    from pubswap_protocol.errors import InvalidSettings
    from pubswap_protocol.model import model_layout

    try:
        folder = local_folder(recipe.model.location, recipe.model.revision)
        return (model_layout(folder, recipe.lora) if folder else None), []
    except InvalidSettings as error:
        return None, [f"model: {error.detail}"]


def _cost_lines(recipe: Recipe, layout: AdapterLayout | None) -> Iterator[str]:
    """A run's steps, responses and bytes; the adapter's if the base model is here."""
    from pubswap_client.operator.tables import size_text
    from pubswap_client.recipes.check import (
        KEEP_ROUNDS,
        coordinator_bytes,
        member_bytes,
        update_bytes,
    )
    from pubswap_protocol.schedule import public_steps_per_round

    rounds, tau, grpo, sweep = recipe.rounds, recipe.local_steps, recipe.grpo, recipe.sweep
    responses = rounds * tau * grpo.prompts_per_step * grpo.responses_per_prompt
    yield f"{recipe.name}: {recipe.method}, {recipe.clients} clients, base {recipe.model.source}"
    yield f"steps:     {rounds} rounds x {tau} = {rounds * tau} of each client"
    yield f"           {rounds * public_steps_per_round(recipe)} of them public"
    yield f"responses: {responses} of each client, at most"
    yield f"           {grpo.max_response_tokens} tokens each"
    if layout is None:
        yield "adapter:   its size is known when the base model is here"
    else:
        sent = update_bytes(recipe, layout)
        yield (
            f"adapter:   {size_text(layout.file_bytes)}; a client sends {size_text(sent)} a round, "
            f"{size_text(sent * rounds)} in all"
        )
        coordinator = size_text(coordinator_bytes(recipe, layout))
        yield (
            f"disk:      {coordinator} on the coordinator at most, with the updates of "
            f"{KEEP_ROUNDS} rounds kept (PUBSWAP_KEEP_ROUNDS)"
        )
        member = size_text(member_bytes(recipe, layout))
        yield f"           {member} on each member, without the base model"
    settings, runs = len(list(sweep.settings())), sweep.runs(recipe.clients)
    yield f"sweep:     {settings} settings, {len(sweep.seeds)} seeds: {runs} runs"
