"""`pubswap model card`: what a coordinator needs to know of a base model, for its dashboard."""

import re
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from pubswap_client.command_line import Changes
from pubswap_protocol.errors import InvalidSettings

model_commands = typer.Typer(help="Describe a base model to a coordinator.", no_args_is_help=True)


@model_commands.command("card")
def card(
    model: Annotated[str, typer.Argument(help="The base model: a folder, or a hub id.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model-card.json"),
    revision: Annotated[str | None, typer.Option(help="Revision on the hub.")] = None,
    changes: Changes = None,
) -> None:
    """Write the card of a base model, with which the dashboard creates a run.

    A coordinator has no weights, so it takes digests and the adapter's shapes from this file.
    Settings that need the model's files are fixed by it: give them with --set, such as
    --set lora.rank=32 or --set chat_template=none. The others can be changed on the dashboard.
    """
    from pubswap_client.base_model import model_folder, tokenizer_of
    from pubswap_client.recipes.inheritance import parse_set
    from pubswap_client.recipes.runfile import run_card
    from pubswap_client.recipes.tables import ModelSource
    from pubswap_client.run_card import card_bytes
    from pubswap_protocol.command_line.keys import dotted_keys, fault_lines, nested
    from pubswap_protocol.files import expanded, write_whole
    from pubswap_protocol.messages import CreateRun
    from pubswap_protocol.settings import RunSettings

    folder = model_folder(model, revision)
    try:
        settings = RunSettings.model_validate(nested(parse_set(changes or [])))
    except ValidationError as error:
        raise InvalidSettings(
            "\n".join(fault_lines(error.errors(), dotted_keys(RunSettings)))
        ) from None
    named = Path(model).resolve().name if folder == expanded(model) else model
    source = ModelSource(source=named, revision=revision)
    base = source.card(folder, settings.lora, settings.grpo.longest_row)
    described = run_card(base, tokenizer_of(folder), settings)
    name = re.sub(r"[^a-z0-9]+", "-", Path(named).name.lower()).strip("-")[:50] or "model"
    run = CreateRun(name=f"{name}-run", settings=settings, model=described)
    write_whole(out, card_bytes(run))
    typer.echo(f"Wrote {out}. Open New run on the coordinator's dashboard, and choose this file")
    typer.echo(f"and {folder / 'tokenizer.json'}.")
