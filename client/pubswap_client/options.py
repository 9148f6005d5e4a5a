"""Options shared by the commands that compute: this machine's settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubswap_protocol.command_line.sharing import sharing

if TYPE_CHECKING:
    from pubswap_client.settings import ClientSettings

Config = Annotated[Path | None, typer.Option(help="A client.toml with these settings.")]
State = Annotated[
    Path | None,
    typer.Option(help="The state folder, with token and progress.", show_default="pubswap-state"),
]
Model = Annotated[str | None, typer.Option(help="The base model: a folder or a hub id.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[
    str | None, typer.Option(help="The base model's precision: auto, float32 or bfloat16.")
]
Threads = Annotated[
    int | None,
    typer.Option(help="CPU threads of each process; by default all cores, divided among them."),
]

Data = Annotated[Path | None, typer.Option(help="The private problems (JSONL).")]
Engine = Annotated[str | None, typer.Option(help="auto, transformers, vllm or vllm-server.")]
Processes = Annotated[
    int | None, typer.Option(help="Processes that share each update, one for each GPU.")
]


@dataclass(frozen=True)
class CommonOptions:
    """Options given on the command line, which override the config file."""

    config: Path | None
    values: dict[str, Any]

    def settings(self, **more: Any) -> "ClientSettings":
        """Load the settings, with `more` options of the command's own. Raises InvalidSettings."""
        from pubswap_client.settings import load_settings

        return load_settings(self.config, **self.values, **more)


def _common_options(
    config: Config = None,
    state: State = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    threads: Threads = None,
) -> CommonOptions:
    return CommonOptions(
        config,
        {"state": state, "model": model, "device": device, "dtype": dtype, "threads": threads},
    )


# A decorator that passes these options as the command's first argument.
computing = sharing(_common_options)
