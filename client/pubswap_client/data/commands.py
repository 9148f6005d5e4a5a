"""`pubswap data ...`: convert a table, split a data set between clients, and inspect a split."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table

from pubswap_client.data.convert.command import convert_command
from pubswap_client.data.spec import DataSpec, load_spec
from pubswap_client.toml_files import read_toml
from pubswap_protocol.bounds import escaped
from pubswap_protocol.command_line.sharing import sharing
from pubswap_protocol.problems import read_problems
from pubswap_protocol.settings import RunSettings

if TYPE_CHECKING:
    from pubswap_client.data.manifest import DataManifest

data_commands = typer.Typer(
    help="Convert tables to problems, and divide data sets.", no_args_is_help=True
)
data_commands.command("convert")(convert_command)


_KIND = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """A setting of a spec as a parameter of a command."""
    types = str(field.annotation)
    kind: Any = next((kind for kind in (int, float, Path) if kind.__name__ in types), str)
    if field.is_required():
        needed = Annotated[kind, typer.Argument(help=field.description)]
        return inspect.Parameter(name, _KIND, annotation=needed)
    shown = str(field.default) if field.default else False
    flag = f"--{name.rstrip('_').replace('_', '-')}"
    option = typer.Option(flag, help=field.description, show_default=shown)
    return inspect.Parameter(name, _KIND, default=None, annotation=Annotated[kind | None, option])


def _spec(**options: Any) -> DataSpec:
    if options["tasks"] is not None:
        options["tasks"] = _tasks(options["tasks"])
    return load_spec({key: value for key, value in options.items() if value is not None})


_spec.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_option(name, field) for name, field in DataSpec.model_fields.items()]
)


@data_commands.command("prepare")
@sharing(_spec)
def prepare_command(
    spec: DataSpec,
    out: Annotated[Path, typer.Option(help="The new folder to write.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Leave out prompts over --max-prompt-tokens of this model: folder, hub id."
        ),
    ] = None,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="With --model: the run's grpo.max_prompt_tokens.")
    ] = 1024,
) -> None:
    """Create private, public and test sets, with a manifest and a picture of the topics.

    math, deepmath, medical and gsm8k come from the Hugging Face hub, or with --from from downloaded
    files. The first three have the paper's sizes by default. jsonl takes a file of problems, as
    `data convert` makes it. reasoning-gym needs no download; --tasks takes names, such as
    chain_sum,gcd, or a TOML file with a table for each task.

    Clients get equal numbers of problems; topics follow Dirichlet(alpha). No prompt is in two sets.
    Repeating the same command changes nothing.
    """
    from pubswap_client.data.fault_list import fault_list
    from pubswap_client.data.prepare import prepare

    limit = None
    if model is not None:
        from pubswap_client.base_model import model_folder, prompt_limit

        run = RunSettings.model_validate({"grpo": {"max_prompt_tokens": max_prompt_tokens}})
        limit = prompt_limit(model_folder(model), run)
    folder = prepare(spec, out, limit)
    if limit is not None:
        # It may have been made before, without a limit.
        for path in sorted(folder.glob("*.jsonl")):
            limit.check(read_problems(path), str(path))
    show(folder)
    if (listing := fault_list(folder)).exists():
        typer.echo(f"{listing} lists the unusable answers, with lines and reasons.")


@data_commands.command("show")
def show(
    folder: Annotated[Path, typer.Argument(help="A folder made by `data prepare`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> None:
    """Show the topics of each set, and check that no file has changed."""
    from pubswap_client.data.examples import UNREAD
    from pubswap_client.data.manifest import check_files, read_manifest

    manifest = read_manifest(folder)
    check_files(folder, manifest)
    if as_json:
        typer.echo(escaped(manifest.model_dump_json(indent=2)))
        return
    console = Console(markup=False)
    console.print(_topics_table(manifest))
    for omission in manifest.left_out:
        console.print(
            f"left out: {omission.rows} rows, {omission.reason} (the first: {omission.first[0]})"
        )
    misread = sum(
        omission.rows for omission in manifest.left_out if omission.reason.startswith(UNREAD)
    )
    console.print(f"answers that their verifier could not read: {misread}")
    console.print(f"{folder}: {len(manifest.files)} files, as they were written.")


def _topics_table(manifest: "DataManifest") -> Table:
    table = Table("", title="Problems by topic")
    table.add_column("topic", overflow="fold")
    for name in manifest.files:
        table.add_column(name.removesuffix(".jsonl"), justify="right")
    for number, topic in enumerate(manifest.topics()):
        counts = (str(file.topics.get(topic, "")) for file in manifest.files.values())
        table.add_row(str(number), topic, *counts)
    table.add_section()
    table.add_row("", "all", *(str(file.problems) for file in manifest.files.values()))
    return table


def _tasks(text: str) -> Any:
    """Parse comma-separated task names, or read a TOML file with a table for each task."""
    if text.endswith(".toml"):
        return read_toml(Path(text))
    return [name.strip() for name in text.split(",") if name.strip()]
