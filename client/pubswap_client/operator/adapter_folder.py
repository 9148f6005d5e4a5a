"""Write a round's adapter to a folder: for PEFT and vLLM, or merged into its base model."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pubswap_protocol.errors import WrongState
from pubswap_protocol.files import require_vacant, whole_folder
from pubswap_protocol.messages import WholeRun

if TYPE_CHECKING:
    from pubswap_client.coordinator.client import CoordinatorClient

CARD = "README.md"


class Format(StrEnum):
    PEFT = "peft"
    MERGED = "merged"


def _require_torch(format_: Format) -> Format:
    """Raise ModuleNotFoundError before any request if the format needs torch and it is missing."""
    if format_ is Format.MERGED:
        import pubswap_client.rollout.merged_model  # noqa: F401
    return format_


FormatOption = Annotated[
    Format,
    typer.Option(
        "--format",
        callback=_require_torch,
        help="peft: a folder for PEFT and vLLM. merged: the base model with the adapter in its "
        "weights.",
    ),
]
BaseOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="merged: the base model, a folder or a hub id; by default the run's."
    ),
]


def which_adapter(run: WholeRun, round_: int | None) -> str:
    """`final`, or a round's number; raises WrongState if a run has no final adapter yet."""
    if round_ is not None:
        return str(round_)
    if run.state != "finished":
        available = [each.round for each in run.rounds if each.adapter is not None]
        raise WrongState(
            f"Run {run.name} is {run.state}, so it has no final adapter. For an earlier one, give "
            f"--round, from 0 (untrained) to {max(available, default=0)}."
        )
    return "final"


def take_adapter(
    api: "CoordinatorClient",
    run: WholeRun,
    which: str,
    out: Path,
    format_: Format = Format.PEFT,
    base: str | None = None,
    finish: Callable[[Path], object] = lambda folder: None,
) -> list[str]:
    """Write the `final`, the `best` or a round's adapter to `out`; returns lines to print.

    The folder appears complete or not at all; `finish` may add to it before. For the merged format,
    `base` is the base model if it is not where the run says. Raises InvalidSettings if `out` is
    taken.
    """
    from pubswap_client.operator.adapter_card import adapter_text, loading

    require_vacant(out)
    number, adapter = api.adapter_of_round(run.id, which, run.model.layout.file_bytes)
    with whole_folder(out) as making:
        write_adapter(making, run, number, adapter, format_, base)
        finish(making)
    best = ", the best so far," if which == "best" and number else ""
    wrote = f"Wrote {adapter_text(run, number)}{best} of {run.name} to {out}. Load it with"
    lines = loading(run, adapter, str(out), format_ is Format.MERGED)
    return [wrote, *(f"  {line}" for line in lines)]


def write_adapter(
    out: Path,
    run: WholeRun,
    number: int,
    adapter: bytes,
    format_: Format = Format.PEFT,
    base: str | None = None,
) -> None:
    """Write a round's adapter in a format, with a model card, into the folder `out`.

    For the merged format, `base` is the base model if it is not where the run says. Raises
    InvalidSettings if it is not available, BaseModelMismatch if it is a different one, and
    InvalidAdapter for numbers or tensors that the run's adapters do not have.
    """
    from pubswap_client.operator.adapter_card import card_text

    lora, model = run.settings.lora, run.model
    if format_ is Format.MERGED:
        from pubswap_client.base_model import model_folder
        from pubswap_client.rollout.merged_model import write_merged_model

        folder = model_folder(base or model.source, model.revision)
        write_merged_model(out, adapter, lora, model, folder)
    else:
        from pubswap_protocol.tensors.peft_folder import PublishedAdapter, write_peft_folder

        write_peft_folder(out, adapter, lora, model, model.source)
        PublishedAdapter(out, model).check()
    merged = format_ is Format.MERGED
    (out / CARD).write_text(card_text(run, number, adapter, merged), encoding="utf-8")
