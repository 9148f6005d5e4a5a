"""`pubswap data ...`: convert a table, split a data set between clients, and inspect a split."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pubswap_client.data.convert.command import convert_command
from pubswap_client.data.spec import DataSpec, load_spec
from pubswap_protocol.command_line.sharing import option_of, sharing

if TYPE_CHECKING:
    from pubswap_client.data.manifest import DataManifest

data_commands = typer.Typer(
    help="Convert tables to problems, and divide data sets.", no_args_is_help=True
)
data_commands.command("convert")(convert_command)


def _spec(
    source: Annotated[str, typer.Argument(help=DataSpec.model_fields["source"].description)],
    from_: Annotated[
        Path | None, typer.Option("--from", help=DataSpec.model_fields["from_"].description)
    ] = None,
    **options: Any,
) -> DataSpec:
    given = {"source": source, "from_": from_, **options}
    return load_spec({key: value for key, value in given.items() if value is not None})


_OPTIONS = [
    option_of(DataSpec, name) for name in DataSpec.model_fields if name not in ("source", "from_")
]


@data_commands.command("prepare")
@sharing(_spec, *_OPTIONS)
def prepare_command(
    spec: DataSpec,
    out: Annotated[Path, typer.Option(help="The new folder to write.")],
) -> None:
    """Create private, public and test sets, with a manifest.

    math, deepmath and medical come from the Hugging Face hub, or with --from from downloaded files,
    and have the paper's sizes by default. jsonl takes a file of problems, as `data convert` makes
    it.

    Clients get equal numbers of problems; topics follow Dirichlet(alpha). No prompt is in two sets.
    Repeating the same command changes nothing.
    """
    from pubswap_client.data.fault_list import fault_list
    from pubswap_client.data.prepare import prepare

    folder = prepare(spec, out)
    show(folder)
    if (listing := fault_list(folder)).exists():
        typer.echo(f"{listing} lists the unusable answers, with lines and reasons.")


@data_commands.command("show")
def show(
    folder: Annotated[Path, typer.Argument(help="A folder made by `data prepare`.")],
) -> None:
    """Show the topics of each set, and check that no file has changed."""
    from pubswap_client.data.manifest import check_files, read_manifest

    manifest = read_manifest(folder)
    check_files(folder, manifest)
    console = Console(markup=False)
    console.print(_topics_table(manifest))
    for omission in manifest.left_out:
        console.print(
            f"left out: {omission.rows} rows, {omission.reason} (the first: {omission.first[0]})"
        )
    console.print(f"{folder}: {len(manifest.files)} files, as they were written.")


def _topics_table(manifest: "DataManifest") -> Table:
    table = Table(title="Problems by topic")
    table.add_column("topic", overflow="fold")
    for name in manifest.files:
        table.add_column(name.removesuffix(".jsonl"), justify="right")
    for topic in manifest.topics():
        counts = (str(file.topics.get(topic, "")) for file in manifest.files.values())
        table.add_row(topic, *counts)
    table.add_section()
    table.add_row("all", *(str(file.problems) for file in manifest.files.values()))
    return table
