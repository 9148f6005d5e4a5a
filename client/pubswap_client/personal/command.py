"""`pubswap client personalize`."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_client.computing import computing
from pubswap_client.daemon.signals import until_stopped

if TYPE_CHECKING:
    from pubswap_client.settings import ClientSettings


@computing("data")
def personalize(
    settings: "ClientSettings",
    adapter: Annotated[
        Path | None,
        typer.Option(help="The shared adapter, a PEFT folder; by default the state folder's."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=100_000, help="Number of steps to train.")] = 48,
    out: Annotated[Path, typer.Option(help="The new folder to write.")] = Path("personal"),
) -> None:
    """Train a personal adapter on top of the run's, on your private problems.

    The run's adapter is a compromise between all members. If your problems differ from the others',
    a few more steps on yours may help. This command adds the shared adapter to the base model,
    freezes it, and trains a second one with the run's own private steps. It opens no connection, so
    the base model must be on this machine. Both adapters then answer your held-out problems with
    the same draws. Use the personal one only if it is better by more than chance: 12 points with 64
    problems.

    It needs `holdout` in client.toml, as in the run, and the state folder of a run that has ended,
    or --adapter with a folder from `pubswap client adapter`. It samples with transformers, in one
    process. The new folder contains both adapters as one, for PEFT and vLLM.

    You can stop it at any time and start it again: it continues after its last step.
    """
    from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with until_stopped(), progress_bar() as progress:
        from pubswap_client.organisation.outcome import ADAPTER
        from pubswap_client.personal.personalizing import personalize as run

        measured = run(
            settings,
            adapter or settings.state / ADAPTER,
            steps,
            out,
            lambda words: next_stage(progress, words),
        )
    typer.echo(
        f"pass@1 on {measured.problems} held-out problems of our own: shared "
        f"{measured.shared:.3f}, personal {measured.personal:.3f} "
        f"({measured.personal - measured.shared:+.3f})"
    )
    typer.echo(f"Wrote both adapters as one to {out}. Nothing was sent; keep it to yourselves.")
