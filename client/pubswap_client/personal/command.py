"""`pubswap client personalize`."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from pubswap_client.daemon.signals import until_stopped
from pubswap_client.options import Data, Given, computing


@computing
def personalize(
    given: Given,
    data: Data = None,
    adapter: Annotated[
        Path | None,
        typer.Option(help="The shared adapter, a PEFT folder; by default the state folder's."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=100_000, help="How many steps to train.")] = 48,
    out: Annotated[Path, typer.Option(help="The new folder to write.")] = Path("personal"),
) -> None:
    """Train an adapter of your own on top of the run's, on your private problems, and keep it.

    The run's adapter is everybody's compromise; where your problems differ from the others', a few
    steps more on yours alone may help you. This adds the shared adapter to the base model, freezes
    it, and trains a second one with the run's own private steps. Nothing is sent: no connection is
    opened, so the base model must be on this machine. Then both answer your held-out problems with
    the same draws; take the personal one only if it is better there, by more than chance: with 64
    problems, 12 points.

    It needs `holdout` in client.toml, as it was in the run, and the state folder of a run that has
    ended, or --adapter with what `pubswap client adapter` wrote. It samples by transformers, in one
    process. The folder that it writes holds both adapters as one, and peft and vLLM load it.

    Stop at any time and start again: it goes on after its last step.
    """
    from pubswap_protocol.command_line.progress_bar import next_stage, progress_bar

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    settings = given.settings(data=data)
    with until_stopped(), progress_bar() as progress:
        from pubswap_client.organisation.outcome import ADAPTER
        from pubswap_client.personal.personalizing import personalize as run

        found = run(
            settings,
            adapter or settings.state / ADAPTER,
            steps,
            out,
            lambda words: next_stage(progress, words),
        )
    typer.echo(
        f"pass@1 on {found.problems} held-out problems of our own: shared {found.shared:.3f}, "
        f"personal {found.personal:.3f} ({found.personal - found.shared:+.3f})"
    )
    typer.echo(f"Wrote both adapters as one to {out}. Nothing was sent; keep it to yourselves.")
